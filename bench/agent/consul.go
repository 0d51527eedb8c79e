package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/blackhole/blackhole/bench/kit"
	"github.com/blackhole/blackhole/pkg/fault"
)

// peerName is the name of the other system.
const peerName = "Consul"

// consul formats requests to a Consul agent.
type consul struct{ host string }

// startConsul starts an agent in server mode with its state in memory.
func startConsul(ctx context.Context, binary, dir string, log io.Writer) (*system, error) {
	free, err := kit.Ports(6)
	if err != nil {
		return nil, err
	}
	settings := fmt.Sprintf(`ports { http = %s dns = %s serf_lan = %s serf_wan = %s server = %s grpc = %s grpc_tls = -1 }
limits { http_max_conns_per_client = 4000 rpc_max_conns_per_client = 4000 }
disable_update_check = true
`, free[0], free[1], free[2], free[3], free[4], free[5])
	file := filepath.Join(dir, "consul.hcl")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		return nil, fault.As("startConsul", fault.Invalid, err)
	}
	server := &kit.Process{Binary: binary, Log: log, Args: []string{"agent", "-dev", "-node=dev", "-log-level=error", "-config-file=" + file}}
	if err := server.Start(); err != nil {
		return nil, err
	}
	address := "127.0.0.1:" + free[0]
	s := &system{
		api: consul{address}, name: peerName, address: address, index: "X-Consul-Index", marker: `"Node": {`, server: server,
	}
	return s, s.ready(ctx, request("PUT", address, "/v1/kv/up", "1"))
}

func (c consul) list(service string) []byte {
	return request("GET", c.host, "/v1/health/service/"+service+"?passing", "")
}

// put writes to the catalog directly: a node of its own with one instance and one check.
func (c consul) put(e entry) []byte {
	return request("PUT", c.host, "/v1/catalog/register", fmt.Sprintf(
		`{"Node":"node-%[1]s","Address":%[2]q,"Service":{"ID":%[1]q,"Service":%[3]q,"Address":%[2]q,"Port":8080,"Tags":["a","b"],"Meta":{"v":%[4]q}},`+
			`"Check":{"CheckID":"chk:%[1]s","Name":"alive","Status":"passing","ServiceID":%[1]q}}`, e.name(), e.address(), e.service, e.mark))
}

func (c consul) enroll(e entry) []byte {
	check := `{"TTL":"3600s","Status":"passing"}`
	return request("PUT", c.host, "/v1/agent/service/register", fmt.Sprintf(
		`{"ID":%q,"Name":%q,"Address":%q,"Port":8080,"Tags":["a","b"],"Meta":{"v":%q},"Check":%s}`, e.name(), e.service, e.address(), e.mark, check))
}

func (c consul) leave(e entry) []byte {
	return request("PUT", c.host, "/v1/agent/service/deregister/"+e.name(), "")
}

func (c consul) beats(e entry, _ []byte) []beat {
	return []beat{{"heartbeat, TTL check", request("PUT", c.host, "/v1/agent/check/pass/service:"+e.name(), "")}}
}
