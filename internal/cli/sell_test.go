package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/service"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/records"
)

// TestSellAsksOnATerminal: what is missing is asked, a wrong answer again, and no registers nothing.
func TestSellAsksOnATerminal(t *testing.T) {
	for name, c := range map[string]struct {
		answers string
		code    int
		says    []string
	}{
		"yes": {answers: "500\ncheap\n0.02\n\nBerlim\nBerlin\nwg://disk.example.com:1\n\n", says: []string{
			"Bandwidth to sell, Mbit/s: ", `--price: must be a number, not "cheap"`, "wrote ", "Register this offer? [Y/n] ",
		}},
		"no": {answers: "500\n0.02\nBerlin\nwg://disk.example.com:1\nn\n", says: []string{"not registered: edit "}},
		"local": {answers: "500\n0.02\nBerlin\n127.0.0.1:11434\nn\n", says: []string{
			"URL that buyers use, or HOST:PORT of a local service", "access: peer", "not registered: edit ",
		}},
		"unknown city": {answers: "500\n0.02\nBerlim\n", code: 2, says: []string{`--city: "Berlim" is no known city`, "did you mean Berlin", "--city: has no answer: the input has ended"}},
		"host missing": {answers: "500\n0.02\nBerlin\nberlin.example.com\n", code: 2, says: []string{"--endpoint: must be a URL with a host", "--endpoint: has no answer"}},
		"not agreed":   {answers: "500\n0.02\nBerlin\nwg://disk.example.com:1\n", says: []string{"not registered: edit "}},
		"ends":         {answers: "500\n", code: 2, says: []string{"--price: has no answer: the input has ended"}},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			app := testApp(strings.NewReader(c.answers), &stdout, &stderr, nil)
			app.Terminal = term.Terminal{Input: true}
			path := filepath.Join(t.TempDir(), "disk.yaml")
			code := app.Execute(t.Context(), []string{"sell", "cdn", "--grpc", serve(t, new(fake)), "--file", path})
			for _, says := range c.says {
				require.Contains(t, stderr.String(), says)
			}
			require.Equal(t, c.code, code, stderr.String())
			text, err := os.ReadFile(path)
			if c.code != 0 {
				require.ErrorIs(t, err, os.ErrNotExist)
				return
			}
			require.NoError(t, err)
			offers, err := records.ParseOffersYAML(text)
			require.NoError(t, err)
			require.Equal(t, "cdn-berlin", offers[0].ID)
			require.Equal(t, uint64(500), offers[0].Capabilities.CDN.BandwidthMbps)
			require.Equal(t, "DE", offers[0].Location.Country)
			require.Equal(t, name == "yes", stdout.Len() > 0)
			require.Equal(t, name == "local", offers[0].Metadata.Access == records.AccessPeer)
		})
	}
}

// TestSellWritesACheckOfItsEndpoint: an endpoint of HTTP makes the file one of an instance, which is kept although
// the peer here has no instances.
func TestSellWritesACheckOfItsEndpoint(t *testing.T) {
	var stdout, stderr bytes.Buffer
	path := filepath.Join(t.TempDir(), "gpu.yaml")
	args := []string{
		"sell", "gpu", "--grpc", serve(t, new(fake)), "--file", path, "--gpu-model", "NVIDIA L40S", "--gpu-memory-mb", "48000", "--gpus", "2",
		"--cpu-cores", "32", "--memory-mb", "128000", "--price", "0.45", "--city", "Suva", "--endpoint", "https://gpu.example.com/v1", "--yes",
	}
	require.NotZero(t, testApp(strings.NewReader(""), &stdout, &stderr, nil).Execute(t.Context(), args))
	require.Contains(t, stderr.String(), path+" is kept")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	list, err := service.ParseInstances(text, "")
	require.NoError(t, err)
	require.Equal(t, instance.HTTP, list[0].Spec.Check.Type)
	require.Equal(t, "https://gpu.example.com/v1", list[0].Spec.Check.Endpoint)
	require.Equal(t, "gpu.example.com", list[0].Spec.Host)
	require.Equal(t, 443, list[0].Spec.Port)
	o, err := records.ParseOffer(list[0].Spec.Offer)
	require.NoError(t, err)
	require.Equal(t, "gpu-suva", o.ID)
	require.Len(t, o.Capabilities.Compute.GPUs, 2)
	require.Equal(t, "L40S", o.Capabilities.Compute.GPUs[0].Model, "buyers search for how a model begins")
}

// TestSellCountsAGPUWithoutMemory: a GPU that shares the memory of the machine is offered with it, and what the tool
// of the vendor says of a lost one is told.
func TestSellCountsAGPUWithoutMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the tool is a shell script, and the memory of the machine comes from a file")
	}
	folder := t.TempDir()
	const tool = "#!/bin/sh\necho 'NVIDIA GB10, [N/A]'; echo 'NVIDIA A10, 23028'; echo 'GPU 0000:41:00.0 is lost'; exit 15\n"
	require.NoError(t, os.WriteFile(filepath.Join(folder, "nvidia-smi"), []byte(tool), 0o700))
	var stdout, stderr bytes.Buffer
	path := filepath.Join(t.TempDir(), "gpu.yaml")
	args := []string{
		"sell", "gpu", "--grpc", serve(t, new(fake)), "--file", path, "--memory-mb", "128000", "--cpu-cores", "8",
		"--price", "0.45", "--city", "Suva", "--endpoint", "https://gpu.example.com/v1", "--yes",
	}
	require.NotZero(t, testApp(strings.NewReader(""), &stdout, &stderr, []string{"PATH=" + folder}).Execute(t.Context(), args))
	require.Contains(t, stderr.String(), "nvidia-smi says: GPU 0000:41:00.0 is lost exit status 15")
	require.Contains(t, stderr.String(), "GB10 has no memory of its own: it shares that of the machine")
	text, err := os.ReadFile(path)
	require.NoError(t, err, stderr.String())
	list, err := service.ParseInstances(text, "")
	require.NoError(t, err)
	o, err := records.ParseOffer(list[0].Spec.Offer)
	require.NoError(t, err)
	require.Len(t, o.Capabilities.Compute.GPUs, 2)
	require.Equal(t, "GB10", o.Capabilities.Compute.GPUs[0].Model)
	require.Positive(t, o.Capabilities.Compute.GPUs[0].MemoryMB)
	require.Equal(t, records.GPU{Model: "A10", MemoryMB: 24146}, o.Capabilities.Compute.GPUs[1])
}
