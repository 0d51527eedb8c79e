package remote

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/file"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/environ"
	"github.com/blackhole/blackhole/internal/platform/spelling"
	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/fault"
)

const maxContextFile = 1 << 20

// peerContext is a named peer, with the files of the credentials for it. It has no secret itself.
type peerContext struct {
	Name      string `json:"name"`
	GRPC      string `json:"grpc"`
	TokenFile string `json:"token_file,omitempty"`
	CA        string `json:"tls_ca,omitempty"`
	Cert      string `json:"cert,omitempty"`
	Key       string `json:"key,omitempty"`
}

// contexts is the content of the user's file of contexts.
type contexts struct {
	Used string        `json:"used,omitempty"` // the context of commands that name no peer
	List []peerContext `json:"contexts"`
}

// ContextCommand makes the command context.
func ContextCommand(con *term.Console) *cobra.Command {
	return command.Parent(&cobra.Command{
		Use: "context", Short: "Name peers of several networks, and choose one",
		Long: "Name peers of several networks, and choose one for the commands that name no peer. --grpc and\n" +
			"BLACKHOLE_GRPC come before a context; --context and " + environ.Context + " choose one for a command. The\n" +
			"file of contexts is blackholed/contexts.json in the user's folder of settings, and has names of\n" +
			"credential files, never a secret.",
	}, contextAdd(con), contextUse(con), contextList(con), contextRemove(con))
}

func contextAdd(con *term.Console) *cobra.Command {
	var p peerContext
	cmd := &cobra.Command{Use: "add NAME", Short: "Name a peer, or change what a name stands for", Args: command.OneArg("NAME")}
	f := cmd.Flags()
	f.StringVar(&p.GRPC, "grpc", "", "gRPC address of the peer, or unix:///PATH (required)")
	f.StringVar(&p.TokenFile, "token-file", "", "file with the bearer token")
	f.StringVar(&p.CA, "tls-ca", "", "use TLS and trust these certificate authorities: a PEM file, or "+systemRoots)
	f.StringVar(&p.Cert, "cert", "", "use TLS with this client certificate: a PEM file")
	f.StringVar(&p.Key, "key", "", "private key of the certificate: a PEM file")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if p.Name = args[0]; p.Name == "" {
			return fault.Invalidf("NAME", p.Name, "must not be empty")
		}
		if p.GRPC == "" {
			return fault.Invalidf("--grpc", nil, "is required")
		}
		for _, path := range []*string{&p.TokenFile, &p.CA, &p.Cert, &p.Key} {
			if *path == "" || path == &p.CA && *path == systemRoots {
				continue
			}
			absolute, err := filepath.Abs(*path) // commands run in any folder
			if err != nil {
				return fault.As("cli.context", fault.Internal, err)
			}
			*path = absolute
		}
		return changeContexts(con, func(all *contexts) error {
			all.List = append(slices.DeleteFunc(all.List, p.named), p)
			all.Used = cmp.Or(all.Used, p.Name)
			return nil
		})
	}
	return cmd
}

func (p peerContext) named(other peerContext) bool { return other.Name == p.Name }

func contextUse(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{Use: "use NAME", Short: "Choose the context of later commands", Args: command.OneArg("NAME"), ValidArgsFunction: CompleteContext(con)}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		return changeContexts(con, func(all *contexts) error {
			_, err := all.find("NAME", args[0])
			all.Used = args[0]
			return err
		})
	}
	return cmd
}

func contextRemove(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{Use: "rm NAME", Short: "Remove a context", Args: command.OneArg("NAME"), ValidArgsFunction: CompleteContext(con)}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		return changeContexts(con, func(all *contexts) error {
			p, err := all.find("NAME", args[0])
			all.List = slices.DeleteFunc(all.List, p.named)
			if all.Used == args[0] {
				all.Used = ""
			}
			return err
		})
	}
	return cmd
}

func contextList(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "List the contexts", Args: command.NoArgs}
	var f term.Format
	command.Output(cmd, &f)
	cmd.RunE = func(*cobra.Command, []string) error {
		all, err := readContexts(con)
		if err != nil {
			return err
		}
		d := term.List("contexts", all.List, []string{"USED", "NAME", "GRPC", "TOKEN FILE", "TLS"}, func(p *peerContext) []string {
			used := "-"
			if p.Name == all.Used {
				used = "yes"
			}
			return []string{used, p.Name, p.GRPC, term.OrDash(p.TokenFile), term.OrDash(strings.TrimSpace(p.CA + " " + p.Cert))}
		})
		all.List = term.Emptied(all.List)
		d.Value = all
		return f.Print(con, d)
	}
	return cmd
}

// CompleteContext offers the shell the names of the contexts.
func CompleteContext(c *term.Console) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		all, err := readContexts(c)
		if err == nil && len(args) == 0 {
			for _, p := range all.List {
				names = append(names, term.Clean(p.Name))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// find returns the context with a name. Errors name the flag or argument.
func (all *contexts) find(field, name string) (peerContext, error) {
	var names []string
	for _, p := range all.List {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return peerContext{}, fault.Invalidf(field, name, "no context has the name %q%s", name, spelling.Meant(spelling.Nearest(name, names)))
}

// contextFile is the user's file of contexts, or "" without a home.
func contextFile(c *term.Console) string {
	if dir, _ := c.Env("XDG_CONFIG_HOME"); filepath.IsAbs(dir) { // of the XDG Base Directory Specification, which ignores others
		return filepath.Join(dir, command.Program, "contexts.json")
	}
	if dir, _ := c.Env("AppData"); dir != "" {
		return filepath.Join(dir, command.Program, "contexts.json")
	}
	if home, _ := c.Env("HOME"); home != "" {
		return filepath.Join(home, ".config", command.Program, "contexts.json")
	}
	return ""
}

// readContexts reads the file of contexts. A missing one is empty.
func readContexts(c *term.Console) (all contexts, err error) {
	path := contextFile(c)
	if path == "" {
		return all, nil
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	data, err := file.Read(c, "context", path, maxContextFile)
	if err == nil {
		err = fault.In(path, strictjson.Decode(data, maxContextFile, &all))
	}
	return all, err
}

// changeContexts replaces the file of contexts as a whole.
func changeContexts(c *term.Console, change func(all *contexts) error) error {
	path := contextFile(c)
	if path == "" {
		return fault.Invalidf("HOME", nil, "is not set: there is no folder for contexts")
	}
	all, err := readContexts(c)
	if err == nil {
		err = change(&all)
	}
	if err != nil {
		return err
	}
	text, err := term.JSON(all, "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		_, err = file.Write(c, path, func(w io.Writer) error { _, err := w.Write(text); return err })
	}
	return fault.As("cli.context", fault.Internal, err)
}

// choose takes address and credentials from a context, unless the command or BLACKHOLE_GRPC names a peer: the
// credentials for one peer never go to another one.
func (r *Peer) choose(address string) (string, error) {
	wanted := r.Context
	if address != "" {
		if wanted != "" {
			return "", fault.Invalidf("--context", wanted, "conflicts with --grpc and BLACKHOLE_GRPC: use one of them")
		}
		return address, nil
	}
	if wanted == "" {
		wanted, _ = r.Env(environ.Context)
	}
	all, err := readContexts(r.Console)
	if err != nil {
		return "", err
	}
	wanted = cmp.Or(wanted, all.Used)
	if wanted == "" {
		return "", nil
	}
	p, err := all.find("--context", wanted)
	if err != nil {
		return "", err
	}
	own := &r.Credentials
	if own.Token == "" && own.TokenFile == "" {
		own.TokenFile = p.TokenFile
	}
	if own.Ca == "" && own.Cert == "" && own.Key == "" {
		own.Ca, own.Cert, own.Key = p.CA, p.Cert, p.Key
	}
	return p.GRPC, nil
}
