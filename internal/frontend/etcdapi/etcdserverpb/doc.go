// Package etcdserverpb is the generated code of etcd's API, go.etcd.io/etcd/api/v3/etcdserverpb (Apache License 2.0), with another
// name of its file. The registry of protobuf knows a file by its name, and go-libp2p-pubsub has a rpc.proto, too: a program with both would end at its start.
package etcdserverpb

//go:generate sh generate.sh
