package doctor

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/file"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
)

// bundle is the content of a report of a fault. missing lists the files that the peer refused.
type bundle struct {
	files   []operator.DebugFile
	missing []string
}

// Debug makes the command debug. program describes this program.
func Debug(con *term.Console, examine Examine, program string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "debug [FILE]", Short: "Collect files for a report of a fault", Args: command.AtMostOne("FILE"),
		Long: "Write an archive for a report of a fault: status, peers, group, findings of doctor, and, for a caller with\n" +
			"the role admin, settings, metrics, goroutines, memory by function and the last log lines of the peer. Secrets are left out.\n" +
			"Names of services, peers and addresses are in it: read it before you publish it. FILE must not exist\n" +
			"(default " + defaultBundle + "); - is standard output.",
	}
	s := examined(con, cmd)
	r := remote.New(con, cmd, remote.DefaultTimeout)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path := defaultBundle
		if len(args) > 0 {
			path = args[0]
		}
		f, err := factsOf(s, examine, cmd, r)
		if err != nil {
			return err
		}
		var all bundle
		all.add("program.txt", []byte(program))
		all.addJSON("doctor.json", diagnose(f), nil)
		if f.down == nil {
			if err := r.Call(cmd.Context(), nil, all.ask); err != nil {
				all.missing = append(all.missing, exit.OneLine(err))
			}
		}
		size, err := all.write(con, path)
		if err != nil {
			return err
		}
		for _, line := range all.missing {
			r.Say("warning: not in the archive: %s", line)
		}
		if path == "-" {
			return nil
		}
		v := map[string]any{"file": path, "bytes": size, "files": len(all.files)}
		return r.Print(term.Document{Value: v, Table: term.Plain(term.Clean(path) + "\n")})
	}
	return cmd
}

// defaultBundle is the file of debug.
const defaultBundle = "blackholed-debug.tar.gz"

// ask adds what the peer knows.
func (b *bundle) ask(ctx context.Context, c *operator.Client, _ []string) error {
	status, err := c.Status(ctx)
	b.addJSON("status.json", status, err)
	peers, err := c.Peers(ctx)
	b.addJSON("peers.json", peers, err)
	group, err := c.Coordination().Group(ctx)
	b.addJSON("group.json", group, err)
	requirements, err := c.Services().Requirements().List(ctx)
	b.addJSON("requirements.json", requirements, err)
	files, err := c.Debug(ctx)
	b.files = append(b.files, files...)
	return err
}

func (b *bundle) add(name string, content []byte) {
	b.files = append(b.files, operator.DebugFile{Name: name, Content: content})
}

func (b *bundle) addJSON(name string, value any, err error) {
	var text []byte
	if err == nil {
		text, err = term.JSON(value, "  ")
	}
	if err != nil {
		b.missing = append(b.missing, name+": "+exit.OneLine(err))
		return
	}
	b.add(name, text)
}

// write creates the archive, for its owner alone, or gives it to standard output for "-".
func (b *bundle) write(c *term.Console, path string) (size int64, err error) {
	if path == "-" {
		return file.Write(c, path, b.archive)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, fault.Invalidf("FILE", path, "%w", err)
	}
	err = b.archive(f)
	info, statErr := f.Stat()
	if err := errors.Join(err, statErr, f.Close()); err != nil {
		return 0, fault.As("cli.debug", fault.Internal, errors.Join(err, os.Remove(path)))
	}
	return info.Size(), nil
}

func (b *bundle) archive(out io.Writer) error {
	compressed := gzip.NewWriter(out)
	archive := tar.NewWriter(compressed)
	now := time.Now()
	for _, f := range b.files {
		header := &tar.Header{
			Name: "blackholed-debug/" + filepath.Base(f.Name), // the peer must not name other folders
			Mode: 0o600, Size: int64(len(f.Content)), ModTime: now,
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(f.Content); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}
