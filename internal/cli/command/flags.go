package command

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/spelling"
	"github.com/blackhole/blackhole/pkg/fault"
)

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
