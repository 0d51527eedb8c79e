// Package v3lockpb is the generated code of etcd's API of locks (Apache License 2.0), with the messages of etcdserverpb, whose generate.sh copies it.
package v3lockpb
