// Program consul stands in the place of Consul's own for the tests of its client: it takes the command line and the settings that they
// give to Consul, and becomes a peer.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"syscall"
)

func main() {
	if os.Args[1] == "version" {
		fmt.Println(`{"Version": "1.22.0"}`)
		return
	}
	var settings struct {
		DataDir   string `json:"data_dir"`
		Ports     struct{ HTTP, Server int }
		Addresses struct{ HTTP string }
	}
	for n, arg := range os.Args {
		if arg == "-config-file" && settings.DataDir == "" { // what tests add are settings of Consul's
			text, err := os.ReadFile(os.Args[n+1])
			if err == nil {
				err = json.Unmarshal(text, &settings)
			}
			if err != nil {
				log.Fatal(err)
			}
		}
	}
	if socket, ok := strings.CutPrefix(settings.Addresses.HTTP, "unix://"); ok {
		_ = os.Setenv("BLACKHOLE_UNIX", socket)
	}
	program := os.Getenv("CONSUL_SUITE_PROGRAM")
	log.Fatal(syscall.Exec(program, []string{
		program, "run", "--data", settings.DataDir, "--http", fmt.Sprint("127.0.0.1:", settings.Ports.HTTP), "--grpc", "off", "--dns", "off",
		"--listen", fmt.Sprint("/ip4/127.0.0.1/tcp/", settings.Ports.Server), "--network", fmt.Sprint("suite-", settings.Ports.Server),
	}, append(os.Environ(), "BLACKHOLE_CONSUL_ENABLED=true")))
}
