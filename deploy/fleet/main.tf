# Queues, tables, schedules, alarms and the role of the runner fleet (holdfast fleet run).
# template.yaml has the same for CloudFormation.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "trusted_service" {
  type        = string
  default     = "ecs-tasks.amazonaws.com"
  description = "The service that runs the fleet, which assumes the role."
  validation {
    condition     = contains(["ecs-tasks.amazonaws.com", "ec2.amazonaws.com"], var.trusted_service)
    error_message = "Expected ecs-tasks.amazonaws.com or ec2.amazonaws.com."
  }
}

variable "alarm_topic_arn" {
  type        = string
  default     = ""
  description = "The SNS topic that alarms notify. Empty for none."
}

variable "schedule_state" {
  type        = string
  default     = "ENABLED"
  description = "DISABLED if something else sends the housekeeping messages."
  validation {
    condition     = contains(["ENABLED", "DISABLED"], var.schedule_state)
    error_message = "Expected ENABLED or DISABLED."
  }
}

data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}
data "aws_region" "current" {}

locals {
  # name works with every version of the provider; 6 warns and prefers region.
  place         = "${data.aws_region.current.name}:${data.aws_caller_identity.current.account_id}"
  partition     = data.aws_partition.current.partition
  alarm_actions = var.alarm_topic_arn == "" ? [] : [var.alarm_topic_arn]
  schedules = {
    orphaned_instances = "rate(15 minutes)"
    stale_ssm          = "rate(1 hour)"
    old_jobs           = "cron(0 2 * * ? *)"
    pool_audit         = "cron(0 9 * * ? *)"
  }
}

# SQS counts the retention from the first send, also after it has moved a message to a dead-letter
# queue. So a dead letter stays for the difference at least: 7 and 13 days.
resource "aws_sqs_queue" "termination" {
  name                       = "runs-fleet-termination"
  message_retention_seconds  = 604800
  visibility_timeout_seconds = 120
  receive_wait_time_seconds  = 20
  sqs_managed_sse_enabled    = true
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.termination_dead_letters.arn
    maxReceiveCount     = 3
  })
  tags = { "holdfast.task" = "termination" }
}

resource "aws_sqs_queue" "termination_dead_letters" {
  name                      = "runs-fleet-termination-dlq"
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = true
}

# An order that is a day old is of no use: the schedule has repeated it. The timeout is above the
# five minutes that a task may take.
resource "aws_sqs_queue" "housekeeping" {
  name                       = "runs-fleet-housekeeping"
  message_retention_seconds  = 86400
  visibility_timeout_seconds = 360
  receive_wait_time_seconds  = 20
  sqs_managed_sse_enabled    = true
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.housekeeping_dead_letters.arn
    maxReceiveCount     = 3
  })
  tags = { "holdfast.task" = "housekeeping" }
}

resource "aws_sqs_queue" "housekeeping_dead_letters" {
  name                      = "runs-fleet-housekeeping-dlq"
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = true
}

data "aws_iam_policy_document" "housekeeping_queue" {
  statement {
    sid       = "Schedules"
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.housekeeping.arn]
    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com"]
    }
    condition {
      test     = "ArnEquals"
      variable = "aws:SourceArn"
      values   = [for rule in aws_cloudwatch_event_rule.housekeeping : rule.arn]
    }
  }
}

resource "aws_sqs_queue_policy" "housekeeping" {
  queue_url = aws_sqs_queue.housekeeping.id
  policy    = data.aws_iam_policy_document.housekeeping_queue.json
}

resource "aws_dynamodb_table" "jobs" {
  name         = "runs-fleet-jobs"
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "job_id"
  attribute {
    name = "job_id"
    type = "S"
  }
  attribute {
    name = "status"
    type = "S"
  }
  attribute {
    name = "completed_at"
    type = "S"
  }
  global_secondary_index {
    name            = "status-completed_at-index"
    hash_key        = "status"
    range_key       = "completed_at"
    projection_type = "KEYS_ONLY"
  }
  point_in_time_recovery {
    enabled = true
  }
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_dynamodb_table" "pools" {
  name         = "runs-fleet-pools"
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "pool_name"
  attribute {
    name = "pool_name"
    type = "S"
  }
  point_in_time_recovery {
    enabled = true
  }
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_cloudwatch_event_rule" "housekeeping" {
  for_each            = local.schedules
  name                = "runs-fleet-${replace(each.key, "_", "-")}"
  state               = var.schedule_state
  schedule_expression = each.value
}

resource "aws_cloudwatch_event_target" "housekeeping" {
  for_each  = local.schedules
  rule      = aws_cloudwatch_event_rule.housekeeping[each.key].name
  target_id = "housekeeping"
  arn       = aws_sqs_queue.housekeeping.arn
  input_transformer {
    input_paths    = { time = "$.time" }
    input_template = "{\"task_type\": \"${each.key}\", \"timestamp\": <time>, \"params\": {}}"
  }
}

resource "aws_cloudwatch_metric_alarm" "termination_dead_letters" {
  alarm_name          = "runs-fleet-termination-dlq-depth"
  alarm_description   = "A termination message could not be handled. Its dead letter has the reason."
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = aws_sqs_queue.termination_dead_letters.name }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 1
  threshold           = 0
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

resource "aws_cloudwatch_metric_alarm" "housekeeping_dead_letters" {
  alarm_name          = "runs-fleet-housekeeping-dlq-depth"
  alarm_description   = "A housekeeping message could not be handled. Its dead letter has the reason."
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = aws_sqs_queue.housekeeping_dead_letters.name }
  statistic           = "Maximum"
  period              = 60
  evaluation_periods  = 1
  threshold           = 0
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

resource "aws_cloudwatch_metric_alarm" "termination_age" {
  alarm_name          = "runs-fleet-termination-age"
  alarm_description   = "Termination messages wait for 15 minutes. Does the fleet run?"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateAgeOfOldestMessage"
  dimensions          = { QueueName = aws_sqs_queue.termination.name }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 1
  threshold           = 900
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

resource "aws_cloudwatch_metric_alarm" "housekeeping_age" {
  alarm_name          = "runs-fleet-housekeeping-age"
  alarm_description   = "Housekeeping messages wait for an hour. Does the fleet run?"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateAgeOfOldestMessage"
  dimensions          = { QueueName = aws_sqs_queue.housekeeping.name }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 1
  threshold           = 3600
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

data "aws_iam_policy_document" "trust" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = [var.trusted_service]
    }
  }
}

data "aws_iam_policy_document" "fleet" {
  statement {
    sid = "Queues"
    actions = [
      "sqs:ChangeMessageVisibility",
      "sqs:DeleteMessage",
      "sqs:GetQueueAttributes",
      "sqs:GetQueueUrl",
      "sqs:ListQueueTags",
      "sqs:ReceiveMessage",
    ]
    resources = [aws_sqs_queue.termination.arn, aws_sqs_queue.housekeeping.arn]
  }
  # A message that cannot be handled is sent with its reason, before SQS would move it.
  statement {
    sid = "DeadLetters"
    actions = [
      "sqs:GetQueueAttributes",
      "sqs:GetQueueUrl",
      "sqs:SendMessage",
    ]
    resources = [
      aws_sqs_queue.termination_dead_letters.arn,
      aws_sqs_queue.housekeeping_dead_letters.arn,
    ]
  }
  statement {
    sid = "Jobs"
    actions = [
      "dynamodb:BatchGetItem",
      "dynamodb:BatchWriteItem",
      "dynamodb:DescribeTable",
      "dynamodb:GetItem",
      "dynamodb:Query",
      "dynamodb:Scan",
      "dynamodb:UpdateItem",
    ]
    resources = [
      aws_dynamodb_table.jobs.arn,
      "${aws_dynamodb_table.jobs.arn}/index/status-completed_at-index",
    ]
  }
  statement {
    sid = "Pools"
    actions = [
      "dynamodb:DescribeTable",
      "dynamodb:Scan",
    ]
    resources = [aws_dynamodb_table.pools.arn]
  }
  # Locks are the items of the pools table whose key begins with "lock#".
  statement {
    sid = "Locks"
    actions = [
      "dynamodb:DeleteItem",
      "dynamodb:PutItem",
    ]
    resources = [aws_dynamodb_table.pools.arn]
    condition {
      test     = "ForAllValues:StringLike"
      variable = "dynamodb:LeadingKeys"
      values   = ["lock#*"]
    }
  }
  statement {
    sid = "Parameters"
    actions = [
      "ssm:DeleteParameter",
      "ssm:DeleteParameters",
    ]
    resources = ["arn:${local.partition}:ssm:${local.place}:parameter/runs-fleet/runners/*"]
  }
  # AWS has no narrower resources for these actions. DescribeParameters shows names and times, and
  # no value.
  statement {
    sid = "Lists"
    actions = [
      "cloudwatch:GetMetricData",
      "ec2:DescribeInstances",
      "sqs:ListQueues",
      "ssm:DescribeParameters",
    ]
    resources = ["*"]
  }
  statement {
    sid       = "Terminate"
    actions   = ["ec2:TerminateInstances"]
    resources = ["arn:${local.partition}:ec2:${local.place}:instance/*"]
    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/runs-fleet:managed"
      values   = ["true"]
    }
  }
  # CloudWatch has no resources for this action, but a condition.
  statement {
    sid       = "Metrics"
    actions   = ["cloudwatch:PutMetricData"]
    resources = ["*"]
    condition {
      test     = "StringEquals"
      variable = "cloudwatch:namespace"
      values   = ["RunsFleet"]
    }
  }
}

resource "aws_iam_role" "fleet" {
  name               = "runs-fleet"
  assume_role_policy = data.aws_iam_policy_document.trust.json
}

resource "aws_iam_role_policy" "fleet" {
  name   = "runs-fleet"
  role   = aws_iam_role.fleet.id
  policy = data.aws_iam_policy_document.fleet.json
}

# EC2 gives a role to an instance in a profile.
resource "aws_iam_instance_profile" "fleet" {
  count = var.trusted_service == "ec2.amazonaws.com" ? 1 : 0
  name  = "runs-fleet"
  role  = aws_iam_role.fleet.name
}

# The settings of the fleet.
output "environment" {
  value = {
    RUNS_FLEET_TERMINATION_QUEUE_URL  = aws_sqs_queue.termination.url
    RUNS_FLEET_HOUSEKEEPING_QUEUE_URL = aws_sqs_queue.housekeeping.url
    RUNS_FLEET_JOBS_TABLE             = aws_dynamodb_table.jobs.name
    RUNS_FLEET_POOLS_TABLE            = aws_dynamodb_table.pools.name
  }
}

output "role_arn" {
  value = aws_iam_role.fleet.arn
}
