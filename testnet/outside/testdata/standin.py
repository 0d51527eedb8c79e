#!/usr/bin/python3
"""Stands in for the programs etcd and consul where tests start them: it starts a peer with the same addresses and rights.

It is called by one of these names. BLACKHOLED is the path of the peer's program.
"""

import json
import os
import sys
import tempfile


def main():
    words = sys.argv[1:]
    value = {w.lstrip("-"): after for w, after in zip(words, words[1:])}
    auth, http, more = {}, "127.0.0.1:0", []
    if os.path.basename(sys.argv[0]) == "etcd":
        at = value["listen-client-urls"].split("//")[1]
        environment = {"BLACKHOLE_ETCD_LISTEN": at.replace("localhost", "127.0.0.1")}
        if "cert-file" in value:
            # The name is of the certificate that Vitess makes for its client.
            auth = {"method": "mtls", "ca_cert": value["trusted-ca-file"], "server_cert": value["cert-file"], "server_key": value["key-file"],
                    "certificates": [{"name": "client004.example.com", "role": "admin"}]}
    else:
        if words == ["version"]:
            return print("Consul v1.14.11")
        environment = {"BLACKHOLE_CONSUL_ENABLED": "true"}
        with open(value["config-file"]) as f:
            config = json.load(f)
        http = f"127.0.0.1:{config['ports']['http']}"
        if "acl_master_token" in config:
            auth = {"method": "token", "tokens": [{"name": "tests", "role": "admin", "token": config["acl_master_token"]}]}
    folder = tempfile.mkdtemp(dir=os.environ["STANDIN"])
    if auth:
        settings = os.path.join(folder, "settings.yaml")
        with open(settings, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
            json.dump({"auth": {"enabled": True, **auth}}, f)  # JSON is YAML
        more = ["--config", settings]
    binary = os.environ["BLACKHOLED"]
    sys.stdout.flush()
    log = os.open(os.path.join(folder, "log"), os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.execve(binary, [binary, "run", "--network", "outside", "--data", os.path.join(folder, "peer"), "--http", http, "--grpc", "127.0.0.1:0", "--dns", "off",
                       "--listen", "/ip4/127.0.0.1/tcp/0", *more], {**os.environ, **environment})


main()
