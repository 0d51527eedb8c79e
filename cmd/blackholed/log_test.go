//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	golog "github.com/ipfs/go-log/v2"
	"github.com/libp2p/go-libp2p/gologshim"
	"github.com/stretchr/testify/require"
)

// TestLogWithoutReader: a peer whose log nobody reads any more serves on, counts the lost lines and stops cleanly. Other
// commands die quietly of a closed pipe, as in the pipelines of shells.
func TestLogWithoutReader(t *testing.T) {
	if testing.Short() {
		t.Skip("processes on loopback")
	}
	read, write, err := os.Pipe()
	require.NoError(t, err)
	peer := blackholed(t, nil, "run", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--dns", "off", "--listen", "/ip4/127.0.0.1/tcp/0")
	peer.Stderr = write
	require.NoError(t, peer.Start())
	ended := make(chan error, 1)
	go func() { ended <- peer.Wait() }()
	t.Cleanup(func() { _ = peer.Process.Kill() })
	require.NoError(t, write.Close())
	var address []string
	for lines := bufio.NewScanner(read); address == nil && lines.Scan(); {
		address = regexp.MustCompile(` http=(127\.0\.0\.1:\d+)`).FindStringSubmatch(lines.Text())
	}
	require.NotNil(t, address)
	require.NoError(t, read.Close())

	require.NoError(t, peer.Process.Signal(syscall.SIGHUP)) // which leaves a line
	require.Eventually(t, func() bool {
		answer, err := http.Get("http://" + address[1] + "/v1/metrics")
		require.NoError(t, err)
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return regexp.MustCompile(`(?m)^blackhole_log_lost_lines_total [1-9]`).Match(text)
	}, toolPatience, 20*time.Millisecond, "a line is lost")
	require.NoError(t, peer.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-ended)

	read, write, err = os.Pipe()
	require.NoError(t, err)
	require.NoError(t, read.Close())
	other := blackholed(t, nil, "config", "show")
	other.Stdout = write
	var died *exec.ExitError
	require.ErrorAs(t, other.Run(), &died)
	require.Equal(t, syscall.SIGPIPE, died.Sys().(syscall.WaitStatus).Signal(), died.String())
	require.Empty(t, strings.TrimSpace(string(died.Stderr)))
}

// TestLibrariesLog: the lines of libraries have the form of the log.
func TestLibrariesLog(t *testing.T) {
	out, flags := log.Writer(), log.Flags()
	t.Cleanup(func() { log.SetOutput(out); log.SetFlags(flags) })
	var text bytes.Buffer
	adoptLibraries("json")(slog.NewJSONHandler(&text, nil), slog.NewJSONHandler(&text, &slog.HandlerOptions{Level: slog.LevelError}))
	log.Printf("[zeroconf] no suitable %s interface", "IPv4")
	gologshim.Logger("test").Error("a library fails")
	gologshim.Logger("test").Info("a library talks")
	var said []string
	for line := range strings.Lines(text.String()) {
		var object struct{ Level, Msg string }
		require.NoError(t, json.Unmarshal([]byte(line), &object), line)
		said = append(said, object.Level+" "+object.Msg)
	}
	require.Equal(t, []string{"WARN [zeroconf] no suitable IPv4 interface", "ERROR a library fails"}, said)
	require.Equal(t, golog.JSONOutput, golog.GetConfig().Format)
}

// TestSignalsOfCommands: a command that waits ends with the code of its signal. The server never answers.
func TestSignalsOfCommands(t *testing.T) {
	for signal, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		mute, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		cmd := blackholed(t, nil, "lock", "hold", "db", "--timeout", "0", "--grpc", mute.Addr().String())
		require.NoError(t, cmd.Start())
		called, err := mute.Accept()
		require.NoError(t, err)
		require.NoError(t, cmd.Process.Signal(signal))
		var ended *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &ended)
		require.Equal(t, code, ended.ExitCode())
		require.NoError(t, called.Close())
		require.NoError(t, mute.Close())
	}
}
