"""The Amazon SQS endpoint: its wire protocols, and its actions on Holdfast's queues."""
