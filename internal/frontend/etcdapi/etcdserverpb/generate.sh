#!/bin/sh
# Copies the generated code of etcd's API. "go generate ./internal/frontend/etcdapi/..." runs it.
set -eu
from=$(go list -m -f '{{.Dir}}' go.etcd.io/etcd/api/v3)/etcdserverpb
# The name of the file is a field of its own, with its length before it: 9 and 22 bytes.
sed '/protoc-gen-openapiv2\/options"$/d; s|"\\trpc.proto\\x12|"\\x16etcdserverpb/rpc.proto\\x12|; s|// source: rpc.proto|// source: etcdserverpb/rpc.proto|' "$from/rpc.pb.go" > rpc.pb.go
sed 's|"rpc.proto"|"etcdserverpb/rpc.proto"|; s|// source: rpc.proto|// source: etcdserverpb/rpc.proto|' "$from/rpc_grpc.pb.go" > rpc_grpc.pb.go
grep -q 'x16etcdserverpb/rpc.proto' rpc.pb.go
