output "cloud_init" {
  value       = local.cloud_init
  description = "The rendered cloud-config."
}

output "custom_data" {
  value       = base64encode(local.cloud_init)
  description = "The rendered cloud-config, compressed and in base64."
}
