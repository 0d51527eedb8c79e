#!/bin/sh
# Copies the generated code of etcd's API. "go generate ./internal/frontend/etcdapi/..." runs it.
set -eu
from=$(go list -m -f '{{.Dir}}' go.etcd.io/etcd/api/v3)/etcdserverpb
# The name of the file is a field of its own, with its length before it: 9 and 22 bytes.
sed '/protoc-gen-openapiv2\/options"$/d; s|"\\trpc.proto\\x12|"\\x16etcdserverpb/rpc.proto\\x12|; s|// source: rpc.proto|// source: etcdserverpb/rpc.proto|' "$from/rpc.pb.go" > rpc.pb.go
sed 's|"rpc.proto"|"etcdserverpb/rpc.proto"|; s|// source: rpc.proto|// source: etcdserverpb/rpc.proto|' "$from/rpc_grpc.pb.go" > rpc_grpc.pb.go
grep -q 'x16etcdserverpb/rpc.proto' rpc.pb.go

# Locks and elections, whose messages name those above.
from=$(go mod download -json "go.etcd.io/etcd/server/v3@$(go list -m -f '{{.Version}}' go.etcd.io/etcd/api/v3)" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/etcdserver/api
for of in lock election; do
	mkdir -p "../v3${of}pb"
	for file in "v3$of.pb.go" "v3${of}_grpc.pb.go"; do
		sed 's|"go.etcd.io/etcd/api/v3/etcdserverpb"|"github.com/blackhole/blackhole/internal/frontend/etcdapi/etcdserverpb"|' "$from/v3$of/v3${of}pb/$file" > "../v3${of}pb/$file"
	done
done
