from chora_manifest_client import ManifestClient, ManifestError, ServiceNotFoundError

client = ManifestClient("http://localhost:8500")

try:
    service = client.get_service("nonexistent-service")
except ServiceNotFoundError as e:
    print(f"Service not found: {e.message}")
    # Fallback: use default endpoint or retry
except ManifestError as e:
    print(f"Manifest error: {e.error_code} - {e.message}")
    # Log error, alert monitoring
except Exception as e:
    print(f"Unexpected error: {e}")
    # Critical error, may need to restart
