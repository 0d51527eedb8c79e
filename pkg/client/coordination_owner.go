package client

import "google.golang.org/grpc"

// SpeakForOwners is an option of New for peers of a group, which pass on the calls of their applications: the
// owners of commands and keepalives travel with them. A peer refuses it from an application.
func SpeakForOwners() grpc.DialOption { return speakOption{} }

// speakOption is an option for New; gRPC ignores it.
type speakOption struct{ grpc.EmptyDialOption }
