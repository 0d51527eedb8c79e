package network

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Port has the addresses of one peer: an element of the file written by WritePorts.
type Port struct {
	Name   string   `json:"name"`
	PeerID string   `json:"peer_id"`
	PID    int      `json:"pid"`
	HTTP   string   `json:"http"` // host:port
	GRPC   string   `json:"grpc"` // host:port
	DNS    string   `json:"dns"`  // IP:port
	Listen []string `json:"listen"`
	Data   string   `json:"data"`
}

// WritePorts writes the addresses of the peers as a JSON list. The file appears whole or not at
// all.
func (n *Network) WritePorts(path string) error {
	ports := make([]Port, 0, len(n.Peers))
	for _, p := range n.Peers {
		ports = append(ports, Port{
			Name: p.Name, PeerID: p.ID.String(), PID: p.PID(), HTTP: p.HTTP, GRPC: p.GRPC, DNS: p.DNS, Listen: p.Listen, Data: p.Data,
		})
	}
	text, err := json.MarshalIndent(ports, "", "  ")
	if err != nil {
		return fault.As("network.WritePorts", fault.Internal, err)
	}
	return fault.As("network.WritePorts", fault.Invalid, writeWhole(path, append(text, '\n')))
}

func writeWhole(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // already renamed on success
	if _, err = f.Write(text); err == nil {
		err = f.Chmod(0o644)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
