"""The Amazon SQS endpoint: its wire protocols, and its actions on Holdfast's queues.

`endpoint` reads a request with `json_protocol` or `query_protocol` into one of `shapes`, and calls
the handler of its action, with an `SqsCall`, in `queues`, `messages`, `receive` or `moves`.
`queue_settings` and `message_jobs` map attributes to settings and messages to jobs. `reconciler`
and `moves` have the services that upkeep runs; `cloudwatch` answers CloudWatch's actions.
"""
