package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/blackhole/blackhole/bench/kit"
)

// maxInstances is the limit of blackholed for one peer, and for its entries in the directory.
const maxInstances = 10_000

// ours formats requests to blackholed.
type ours struct{ host string }

// startOurs starts a lone peer.
func startOurs(ctx context.Context, binary, dir string, log io.Writer) (*system, error) {
	free, err := kit.Ports(3)
	if err != nil {
		return nil, err
	}
	address, grpc := "127.0.0.1:"+free[0], "127.0.0.1:"+free[1]
	args := []string{"run", "--profile", "dev", "--data", dir, "--listen", "/ip4/127.0.0.1/tcp/" + free[2], "--http", address, "--grpc", grpc}
	env := []string{"BLACKHOLE_AGENT_REGISTRATIONS_PER_MINUTE=0", "BLACKHOLE_DNS=off"}
	server := &kit.Process{Binary: binary, Args: args, Env: env, Log: log}
	if err := server.Start(); err != nil {
		return nil, err
	}
	s := &system{
		api: ours{address}, name: "blackholed", address: address, index: "X-Blackhole-Index", marker: `"host":`, server: server,
	}
	return s, s.ready(ctx, request("GET", address, "/readyz", ""))
}

func (o ours) list(service string) []byte {
	return request("GET", o.host, "/v1/services/"+service+"/instances", "")
}

func (o ours) put(e entry) []byte { return o.enroll(e) }

func (o ours) enroll(e entry) []byte {
	return request("POST", o.host, "/v1/services/"+e.service+"/instances", fmt.Sprintf(
		`{"id":%q,"host":%q,"port":8080,"tags":["a","b"],"metadata":{"v":%q},"unhealthy_after":"1h","remove_after":"1h"}`, e.name(), e.address(), e.mark))
}

func (o ours) leave(e entry) []byte {
	return request("DELETE", o.host, "/v1/services/"+e.service+"/instances/"+e.name(), "")
}

func (o ours) beats(e entry, enrolled []byte) []beat {
	return []beat{
		{"heartbeat, dialect A", request("PUT", o.host, "/v1/leases/"+leaseOf(enrolled)+"/renew", "")},
		{"heartbeat, dialect B", request("PUT", o.host, "/v1/services/"+e.service+"/"+e.name()+"/heartbeat", "")},
	}
}

// leaseOf reads the lease from the answer to a registration. Heartbeats fail without it.
func leaseOf(enrolled []byte) string {
	var got struct {
		Lease string `json:"lease_id"`
	}
	_ = json.Unmarshal(enrolled, &got)
	return got.Lease
}
