variable "context" {
  type        = object({ names = map(string), group_id = string })
  description = "Of the whole range: first parts of names by kind of resource, its resource group's id."
}

variable "amount" {
  type        = number
  description = "A month's budget, in the subscription's currency."
}

variable "emails" {
  type        = list(string)
  description = "Addresses that receive mails about the budget."
}
