"""Amazon SQS through boto3: a message is a job, and its receipt handle is the lease."""
