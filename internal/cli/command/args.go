package command

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/spelling"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Parent is a command with subcommands only.
func Parent(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	cmd.Args, cmd.RunE = UnknownCommand, ShowHelp
	cmd.AddCommand(children...)
	return cmd
}

// Elsewhere makes a parent answer words that users of similar programs type with the way that is here, by the word.
func Elsewhere(parent *cobra.Command, ways map[string]string) *cobra.Command {
	parent.Annotations = ways
	return parent
}

// AnyWord stands, in the ways of Elsewhere, for all words that resemble no command and have others behind them.
const AnyWord = "*"

// ShowHelp is the work of a command with subcommands only.
func ShowHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// UnknownCommand refuses the name of an unknown command and suggests similar names.
func UnknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if way := cmd.Annotations[args[0]]; way != "" {
		return fault.Invalidf("", args[0], "%q is not a command: %s", args[0], way)
	}
	meant := meantCommands(cmd, args[0])
	if way := cmd.Annotations[AnyWord]; way != "" && len(meant) == 0 && len(args) > 1 {
		return fault.Invalidf("", args[0], "%q is not a command: %s", args[0], way)
	}
	return fault.Invalidf("", args[0], "%q is not a command%s", args[0], spelling.Meant(meant))
}

// NoArgs refuses arguments.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fault.Invalidf("", args[0], "takes no argument, not %q", args[0])
	}
	return nil
}

// OneArg requires exactly one argument.
func OneArg(what string) cobra.PositionalArgs { return counted(what, 1, 1) }

// AtMostOne accepts one argument or none.
func AtMostOne(what string) cobra.PositionalArgs { return counted(what, 0, 1) }

// SomeArgs requires at least one argument.
func SomeArgs(what string) cobra.PositionalArgs { return counted(what, 1, math.MaxInt) }

func counted(what string, least, most int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch n := len(args); {
		case n < least && most == 1:
			return fault.Invalidf(what, nil, "is missing")
		case n < least:
			return fault.Invalidf(what, nil, "must be given at least once")
		case n > most && least == 1:
			return fault.Invalidf(what, nil, "must be given once, not %d times", n)
		case n > most:
			return fault.Invalidf(what, nil, "must be given at most once, not %d times", n)
		}
		return nil
	}
}

// Each calls do for all commands below root, with their paths without the program's name.
func Each(root *cobra.Command, do func(path string, cmd *cobra.Command)) {
	for _, cmd := range root.Commands() {
		do(strings.TrimPrefix(cmd.CommandPath(), Program+" "), cmd)
		Each(cmd, do)
	}
}

// Output adds -o.
func Output(cmd *cobra.Command, f *term.Format) {
	*f = term.AsTable
	cmd.Flags().VarP(f, "output", "o", "table, json, ndjson or yaml")
	Complete(cmd, "output", term.Formats()...)
}

// Complete offers the shell the values of a flag.
func Complete(cmd *cobra.Command, flag string, values ...string) {
	CompleteBy(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// CompleteBy offers the shell values of a flag that a function finds.
func CompleteBy(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic("cli: completion of an unknown flag: " + flag) // impossible: the caller has just added the flag
	}
}

// Assignments reads the values of a flag of the form KEY=VALUE.
func Assignments(flag string, list []string) (map[string]string, error) {
	var m map[string]string
	for _, pair := range list {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, fault.Invalidf(flag, pair, "must be KEY=VALUE, not %q", pair)
		}
		if _, twice := m[key]; twice {
			return nil, fault.Invalidf(flag, pair, "names %q twice", key)
		}
		if m == nil {
			m = map[string]string{}
		}
		m[key] = value
	}
	return m, nil
}

// ExactArgs requires one argument for each name.
func ExactArgs(args, names []string) error {
	if len(args) < len(names) {
		return fault.Invalidf(names[len(args)], nil, "is missing")
	}
	if len(args) > len(names) {
		if len(names) == 0 {
			return NoArgs(nil, args)
		}
		return fault.Invalidf(strings.Join(names, " "), nil, "must be given once: there are %s", fault.Counted(len(args), "argument"))
	}
	return nil
}

// FlagError converts an error of the flag parser into a fault that names the flag.
func FlagError(cmd *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return fault.Invalidf("", nil, "%w%s", err, meantFlag(cmd, err))
	}
	flag, value := "--"+bad.GetFlag().Name, bad.GetValue()
	if cause := bad.Unwrap(); fault.KindOf(cause) == fault.Invalid { // from a flag type of this package
		return fault.Invalidf(flag, value, "%s", fault.Message(cause))
	}
	return fault.Invalidf(flag, value, "must be a %s, not %q", typeName(bad.GetFlag().Value.Type()), value)
}

// typeName describes a flag type of pflag to users.
func typeName(t string) string {
	switch t {
	case "int":
		return "whole number"
	case "uint32", "uint64":
		return "whole number of at least 0, within range"
	case "float64":
		return "number"
	case "duration":
		return "duration (500ms, 10s, 2m)"
	default:
		return t
	}
}

// Displayed is a flag as help and manual pages show it: with a word for the kind of its value, not a type of Go.
func Displayed(f *pflag.Flag) *pflag.Flag {
	words := map[string]string{
		"stringArray": "text", "strings": "list", "stringSlice": "list", "uint": "number", "int": "number", "int64": "number", "uint32": "number", "uint64": "number", "float64": "number",
		"string": "text",
	}
	word, known := words[f.Value.Type()]
	if name, _ := pflag.UnquoteUsage(f); !known || name != "" && strings.Contains(f.Usage, "`") {
		return f
	}
	shown := *f
	shown.Value = typed{f.Value, word}
	if f.DefValue == "[]" {
		shown.DefValue = ""
	}
	return &shown
}

// typed is the value of a flag with another word for its kind.
type typed struct {
	pflag.Value
	word string
}

// Type implements pflag.Value.
func (t typed) Type() string { return t.word }

// meantFlag suggests flags for an unknown one.
func meantFlag(cmd *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return ""
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, f.Name) })
	near := spelling.Nearest(unknown.GetSpecifiedName(), flags)
	for i := range near {
		near[i] = "--" + near[i]
	}
	if name := unknown.GetSpecifiedName(); slices.Contains(term.Formats(), name) && cmd.Flags().Lookup("output") != nil {
		near = []string{"-o " + name}
	}
	return spelling.Meant(near)
}

// synonyms maps words of other programs to our commands.
func synonyms() map[string][]string {
	return map[string][]string{
		"start": {"run"}, "serve": {"run"}, "agent": {"run"}, "daemon": {"run"}, "up": {"run"},
		"join": {"run"}, "members": {"peer ls"}, "swarm": {"peer ls"}, "nodes": {"peer ls"},
		"catalog": {"service ls"}, "list": {"service ls"}, "discover": {"instance find"},
		"operator": {"group"}, "raft": {"group"}, "snapshot": {"group backup"}, "etcd": {"kv"}, "delete": {"kv del"},
		"search": {"offer find"}, "query": {"offer find"}, "publish": {"offer register"}, "provide": {"offer register"}, "records": {"offer ls"},
		"netcheck": {"doctor"}, "diag": {"doctor"}, "check": {"doctor"}, "troubleshoot": {"doctor"},
		"resolve": {"offer show"}, "validate": {"config show"}, "monitor": {"events", "log-level"}, "logs": {"log-level", "events"},
		"services": {"service ls"}, "instances": {"instance find"}, "endpoint": {"status"}, "force-leave": {"group remove"}, "acl": {"config show"},
		"heartbeat": {"instance register"}, "info": {"status"}, "ping": {"status"}, "health": {"status"}, "session": {"lease"}, "mutex": {"lock"}, "elect": {"lock"},
	}
}

// verbs lists our subcommands for those of other programs.
func verbs() map[string][]string {
	ends := []string{"del", "withdraw", "deregister", "revoke"}
	return map[string][]string{
		"list": {"ls", "members", "find"}, "ls": {"members", "find"}, "delete": ends, "rm": ends, "remove": ends, "timetolive": {"show"}, "get": {"show"}, "set": {"put"},
	}
}

// meantCommands suggests commands for an unknown one: subcommands of cmd with a similar name, and at the root also their
// subcommands and our commands for words of other programs.
func meantCommands(cmd *cobra.Command, typed string) (found []string) {
	commands := map[string][]string{}
	for _, child := range cmd.Commands() {
		commands[child.Name()] = append(commands[child.Name()], child.Name())
	}
	if !cmd.HasParent() {
		maps.Copy(commands, synonyms())
		for _, child := range cmd.Commands() {
			for _, verb := range child.Commands() {
				commands[verb.Name()] = append(commands[verb.Name()], child.Name()+" "+verb.Name())
			}
		}
	}
	for _, verb := range verbs()[typed] {
		if cmd.HasParent() && commands[verb] != nil {
			return []string{verb}
		}
	}
	words := []string{typed}
	if commands[typed] == nil {
		words = spelling.Nearest(typed, slices.Collect(maps.Keys(commands)))
	}
	for _, word := range words {
		for _, command := range commands[word] {
			if !slices.Contains(found, command) {
				found = append(found, command)
			}
		}
	}
	return found
}
