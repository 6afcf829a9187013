variable "names" {
  type        = map(string)
  description = "First part of every name, by kind of resource."
}

variable "resource_group_id" {
  type        = string
  description = "What the budget is for."
}

variable "amount" {
  type        = number
  description = "A month's budget, in the subscription's currency."
}

variable "emails" {
  type        = list(string)
  description = "Who is told."
}
