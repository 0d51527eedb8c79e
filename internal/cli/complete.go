package cli

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/coordination"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/service"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// completionTime bounds the calls of a completion: a shell that waits for a far peer feels broken.
const completionTime = 300 * time.Millisecond

// maxCandidates bounds the candidates of a completion. A shell shows no more in a useful way.
const maxCandidates = 500

// source lists the candidates of an argument: a name, or a name and a description with a tab between. args are the
// arguments before it, begun is what the user has typed.
type source func(ctx context.Context, c *operator.Client, cmd *cobra.Command, args []string, begun string) ([]string, error)

// completions names the sources of the arguments of each command, in their order. The last one serves all further
// arguments of a command that takes several.
func completions() map[string][]source {
	return map[string][]source{
		"service require": {services}, "instance find": {services}, "instance watch": {services}, "instance register": {services},
		"instance show": {services, instancesOf}, "instance drain": {services, instancesOf}, "instance deregister": {services, instancesOf},
		"offer withdraw": {offers}, "offer pause": {offers}, "offer resume": {offers}, "offer show": {offers}, "show": {anything},
		"lock hold": {locks}, "lock ls": {locks}, "lock release": {locks},
		"kv get": {keys}, "kv put": {keys}, "kv del": {keys}, "kv ls": {keys}, "kv watch": {keys},
		"group add": {peers}, "group remove": {members}, "group promote": {members}, "group replace": {members, members},
		"group transfer": {members}, "lease show": {leases}, "lease revoke": {leases}, "lease keepalive": {leases},
	}
}

// flagCompletions names the sources of the values of flags that are ids.
func flagCompletions() map[string]source {
	return map[string]source{"lease": leases, "provider": peers, "depends-on": services}
}

// alone replaces the function of cobra's script for bash that calls the package bash-completion. It takes the words
// before the cursor from the line, since bash splits them at "=" and ":" too.
const alone = `
__blackholed_init_completion()
{
    COMPREPLY=() words=() cword=-1
    local i word trimmed rest=${COMP_LINE:0:COMP_POINT}
    for ((i = 0; i <= COMP_CWORD; i++)); do
        trimmed=${rest#"${rest%%[![:space:]]*}"}
        word=${COMP_WORDS[i]}
        ((i < COMP_CWORD)) || word=$trimmed
        if ((i == 0)) || [[ $trimmed != "$rest" ]]; then
            words[++cword]=$word
        else
            words[cword]+=$word
        fi
        rest=${trimmed#"$word"}
    done
    cur=${words[cword]}
    ((cword == 0)) || prev=${words[cword-1]}
}
declare -F _filedir >/dev/null || _filedir()
{
    local IFS=$'\n'
    COMPREPLY+=($(compgen -f -- "$cur"))
}
`

// completeBash makes the script for bash work without the package bash-completion.
func completeBash(con *term.Console, root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	if bash, _, err := root.Find([]string{"completion", "bash"}); err == nil {
		const needs = "This script depends on the 'bash-completion' package.\n" +
			"If it is not installed already, you can install it via your OS's package manager.\n\n"
		bash.Long = strings.Replace(bash.Long, needs, "", 1)
		bash.RunE = func(cmd *cobra.Command, _ []string) error {
			bare, _ := cmd.Flags().GetBool("no-descriptions")
			err := root.GenBashCompletionV2(con.Stdout, !bare)
			if err == nil {
				_, err = io.WriteString(con.Stdout, alone)
			}
			return fault.As("cli.print", fault.Internal, err)
		}
	}
}

// several are the commands whose last argument repeats.
func several() []string {
	return []string{"service require", "instance show", "instance drain", "instance deregister", "offer withdraw", "offer pause", "offer resume", "lease revoke"}
}

// completeLive lets the shell ask the running peer for the arguments of the commands below root.
func completeLive(con *term.Console, root *cobra.Command) {
	table := completions()
	command.Each(root, func(path string, cmd *cobra.Command) {
		for flag, of := range flagCompletions() {
			if command.CallsPeer(cmd) && cmd.Flags().Lookup(flag) != nil {
				command.CompleteBy(cmd, flag, func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
					return candidates(con, cmd, args, begun, of), cobra.ShellCompDirectiveNoFileComp
				})
			}
		}
		sources := table[path]
		if sources == nil {
			if len(cmd.ValidArgs) == 0 && cmd.ValidArgsFunction == nil && !strings.Contains(cmd.Use, "FILE") && !cmd.HasSubCommands() {
				cmd.ValidArgsFunction = cobra.NoFileCompletions
			}
			return
		}
		repeats := slices.Contains(several(), path)
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			n := len(args)
			if n >= len(sources) && repeats {
				n = len(sources) - 1
			}
			// Cobra ends the arguments with a "--" of its own, so a "--" of the user shows only by arguments after it.
			if cmd.ArgsLenAtDash() < len(args) || n >= len(sources) {
				if strings.Contains(cmd.Use, "COMMAND") {
					return nil, cobra.ShellCompDirectiveDefault
				}
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return candidates(con, cmd, args, begun, sources[n]), cobra.ShellCompDirectiveNoFileComp
		}
	})
}

// candidates asks the peer that the flags of cmd name. A peer that does not answer gives no candidates: a completion
// prints no errors.
func candidates(c *term.Console, cmd *cobra.Command, args []string, begun string, of source) []string {
	r := &remote.Peer{Console: c, Cmd: cmd, Timeout: completionTime}
	for flag, to := range map[string]*string{
		"grpc": &r.Grpc, "context": &r.Context, "token": &r.Credentials.Token, "token-file": &r.Credentials.TokenFile,
		"tls-ca": &r.Credentials.Ca, "cert": &r.Credentials.Cert, "key": &r.Credentials.Key,
	} {
		*to, _ = cmd.Flags().GetString(flag)
	}
	var found []string
	_ = r.Call(cmd.Context(), args, func(ctx context.Context, c *operator.Client, args []string) (err error) {
		found, err = of(ctx, c, cmd, args, begun)
		return err
	})
	found = slices.DeleteFunc(found, func(one string) bool {
		word, _, _ := strings.Cut(one, "\t")
		return !strings.HasPrefix(word, begun) || slices.Contains(args, word)
	})
	for i := range found {
		word, text, described := strings.Cut(found[i], "\t")
		if found[i] = term.Clean(word); described {
			found[i] += "\t" + term.Clean(text)
		}
	}
	slices.Sort(found)
	return slices.Compact(found[:min(len(found), maxCandidates)])
}

// namespace is the value of --namespace.
func namespace(cmd *cobra.Command) string {
	if value, err := cmd.Flags().GetString("namespace"); err == nil && value != "" {
		return value
	}
	return instance.DefaultNamespace
}

func services(ctx context.Context, c *operator.Client, cmd *cobra.Command, _ []string, _ string) (found []string, err error) {
	all, err := c.Services().List(ctx, namespace(cmd))
	for _, s := range all.Services {
		found = append(found, s.Name)
	}
	return found, err
}

func instancesOf(ctx context.Context, c *operator.Client, cmd *cobra.Command, args []string, _ string) (found []string, err error) {
	all, err := c.Agent().Discover(ctx, instance.Query{
		Name: instance.Name{Namespace: namespace(cmd), Service: args[0]}, Selector: instance.Selector{AnyStatus: true},
	})
	if err != nil {
		return nil, err
	}
	for _, i := range all.Instances {
		found = append(found, i.ID+"\t"+i.Status.String()+" "+service.AddressOf(i))
	}
	return found, nil
}

func offers(ctx context.Context, c *operator.Client, _ *cobra.Command, _ []string, _ string) (found []string, err error) {
	own, err := c.Offers().List(ctx)
	for _, r := range own {
		found = append(found, r.View.ID+"\t"+r.View.Metadata.Name)
	}
	return found, err
}

// anything completes show. A plane without an answer adds no names.
func anything(ctx context.Context, c *operator.Client, cmd *cobra.Command, args []string, begun string) (found []string, err error) {
	for _, of := range []source{offers, services, locks, peers} {
		some, _ := of(ctx, c, cmd, args, begun)
		found = append(found, some...)
	}
	return found, nil
}

func locks(ctx context.Context, c *operator.Client, _ *cobra.Command, _ []string, begun string) (found []string, err error) {
	states, err := coordination.Locks(ctx, c, begun, "", 0)
	for _, l := range states {
		found = append(found, l.Name)
	}
	return found, err
}

func leases(ctx context.Context, c *operator.Client, _ *cobra.Command, _ []string, _ string) (found []string, err error) {
	all, err := coordination.Leases(ctx, c, 0)
	for _, l := range all {
		if l.ID != coord.HiddenLease {
			found = append(found, coordination.LeaseID(l.ID)+"\t"+l.Application)
		}
	}
	return found, err
}

func keys(ctx context.Context, c *operator.Client, _ *cobra.Command, _ []string, begun string) (found []string, err error) {
	page, err := coordination.Keys(ctx, c, coord.Under(begun).Request(maxCandidates))
	for _, kv := range page.Keys {
		found = append(found, kv.Key)
	}
	return found, err
}

// peers are the connected peers, and members those of the group.
func peers(ctx context.Context, c *operator.Client, _ *cobra.Command, _ []string, _ string) (found []string, err error) {
	all, err := c.Peers(ctx)
	for _, p := range all {
		found = append(found, p.ID+"\t"+p.Agent)
	}
	return found, err
}

func members(ctx context.Context, c *operator.Client, _ *cobra.Command, _ []string, _ string) (found []string, err error) {
	g, err := c.Coordination().Group(ctx)
	for _, m := range g.Voters {
		found = append(found, m.Peer+"\tvoter "+m.Name)
	}
	for _, m := range g.Learners {
		found = append(found, m.Peer+"\tlearner "+m.Name)
	}
	return found, err
}
