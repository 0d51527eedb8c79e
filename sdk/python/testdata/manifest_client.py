from chora_manifest_client import ManifestClient
from threading import Thread
import time

# Initialize client
client = ManifestClient(manifest_url="http://localhost:8500")

# Register service
instance_id = client.register(
    name="my-service",
    version="1.0.0",
    interfaces={
        "REST": "http://10.0.0.10:9000",
        "CLI": "my-service-cli"
    },
    metadata={
        "description": "My capability server",
        "dependencies": ["manifest"],
        "tags": ["custom"]
    }
)
print(f"Registered with ID: {instance_id}")

# Start heartbeat thread
def heartbeat_loop():
    while True:
        try:
            client.heartbeat("my-service", instance_id)
        except Exception as e:
            print(f"Heartbeat failed: {e}")
        time.sleep(10)

heartbeat_thread = Thread(target=heartbeat_loop, daemon=True)
heartbeat_thread.start()

# Discover another service
orchestrator = client.get_service("orchestrator")
orch_url = orchestrator["interfaces"]["REST"]
print(f"Orchestrator REST endpoint: {orch_url}")

# List all healthy services
healthy_services = client.list_services(status="up")
for svc in healthy_services:
    print(f"{svc['name']} v{svc['version']} - {svc['interfaces']['REST']}")

# Deregister on shutdown
import atexit
atexit.register(lambda: client.deregister("my-service", instance_id))
