package registry_test

import (
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/blackhole/blackhole/internal/agent/registry"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/instance"
)

// An instance registers, falls silent and is removed.
func Example() {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	r, err := registry.Open(registry.Config{
		Dir: "/instances", FS: vfs.NewMem(), Self: "this-peer",
		Changed: func(changes []instances.Change) {
			for _, c := range changes {
				if c.Instance == nil {
					fmt.Println(c.ID, "is gone:", c.Reason)
					continue
				}
				fmt.Println(c.ID, "is", c.Instance.Status, "since it was", c.Reason)
			}
		},
	}, now)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = r.Close() }()

	got, err := r.Register(instance.Registration{
		Key:  instance.Key{Service: "web", ID: "web-1"},
		Spec: instance.Spec{Host: "10.0.0.1", Port: 8080},
	}, now)
	if err != nil {
		fmt.Println(err)
		return
	}
	next := r.Expire(now)
	fmt.Println("looking again after", next.Sub(now))
	next = r.Expire(next)
	r.Expire(next)
	fmt.Println(r.Heartbeat([]instances.Ref{{Lease: got.Lease}}, next)[0].Err)
	// Output:
	// web-1 is UP since it was registered
	// looking again after 30s
	// web-1 is UNHEALTHY since it was silent
	// web-1 is gone: lost
	// instances.Heartbeat: lease_id: the instance was deregistered, or removed after missed heartbeats: register it again
}
