package command

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

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

// ShowHelp is the work of a command with subcommands only.
func ShowHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// UnknownCommand refuses the name of an unknown command and suggests similar names.
func UnknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fault.Invalidf("", args[0], "%q is not a command%s", args[0], spelling.Meant(meantCommands(cmd, args[0])))
}

// NoArgs refuses arguments.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fault.Invalidf("", args[0], "takes no argument, not %q", args[0])
	}
	return nil
}

// OneArg requires exactly one argument.
func OneArg(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fault.Invalidf(what, nil, "%s", Given(len(args)))
		}
		return nil
	}
}

// AtMostOne accepts one argument or none.
func AtMostOne(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return fault.Invalidf(what, nil, "must be given at most once, not %d times", len(args))
		}
		return nil
	}
}

// SomeArgs requires at least one argument.
func SomeArgs(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fault.Invalidf(what, nil, "must be given at least once")
		}
		return nil
	}
}

// Given says what is wrong with an argument that must be given once.
func Given(times int) string {
	if times == 0 {
		return "is missing"
	}
	return "must be given once, not " + strconv.Itoa(times) + " times"
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
		return fault.Invalidf(strings.Join(names, " "), nil, "must be given once: there are %s", term.Counted(len(args), "argument"))
	}
	return nil
}
