// Package v3electionpb is the generated code of etcd's API of elections (Apache License 2.0), with the messages of etcdserverpb, whose generate.sh copies it.
package v3electionpb
