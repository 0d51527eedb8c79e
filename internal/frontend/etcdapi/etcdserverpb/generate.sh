#!/bin/sh
# Copies the generated code of etcd's API. "go generate ./internal/frontend/etcdapi/..." runs it.
set -eu
from=$(go list -m -f '{{.Dir}}' go.etcd.io/etcd/api/v3)/etcdserverpb
ours=github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb
# The name of the file is a field of its own, with its length before it: 9 and 22 bytes.
sed 's|"\\trpc.proto\\x12|"\\x16etcdserverpb/rpc.proto\\x12|; s|// source: rpc.proto|// source: etcdserverpb/rpc.proto|' "$from/rpc.pb.go" > rpc.pb.go
sed 's|"rpc.proto"|"etcdserverpb/rpc.proto"|; s|// source: rpc.proto|// source: etcdserverpb/rpc.proto|' "$from/rpc_grpc.pb.go" > rpc_grpc.pb.go
sed "s|\"go.etcd.io/etcd/api/v3/etcdserverpb\"|\"$ours\"|; s|^Package etcdserverpb is|Package gw is|" "$from/gw/rpc.pb.gw.go" > gw/rpc.pb.gw.go
grep -q 'x16etcdserverpb/rpc.proto' rpc.pb.go
grep -q "$ours" gw/rpc.pb.gw.go
