package command

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/fault"
)

// Man makes the command man.
func Man(con *term.Console, version string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages into a directory", Args: OneArg("DIR"),
		Long: "Write a manual page of each command into a directory, which is created. man finds pages in the\n" +
			"directory man1 of each folder in MANPATH.",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // manual pages are for all users
			return fault.Invalidf("DIR", args[0], "%w", err)
		}
		pages := map[string]*cobra.Command{Program: cmd.Root()}
		Each(cmd.Root(), func(path string, c *cobra.Command) {
			if !c.Hidden && !strings.HasPrefix(path, "completion") && path != "help" {
				pages[manName(c)] = c
			}
		})
		for page, c := range pages {
			path := filepath.Join(args[0], page+".1")
			if err := os.WriteFile(path, []byte(manPage(c, version)), 0o644); err != nil { //nolint:gosec // manual pages are for all users
				return fault.Invalidf("DIR", args[0], "%w", err)
			}
		}
		con.Say("wrote %d pages into %s", len(pages), args[0])
		return nil
	}
	return cmd
}

// manName is the name of a command's page: blackholed-kv-put.
func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage is the page of a command in the language of man(7). It depends on the command and the version only, so equal
// programs write equal pages.
func manPage(c *cobra.Command, version string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"%s %s\"\n", roff(strings.ToUpper(manName(c))), Program, roff(version))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(manName(c)), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(c.UseLine()))
	long := c.Long
	long = cmp.Or(long, c.Short)
	b.WriteString(".SH DESCRIPTION\n" + manText(long))
	if c.LocalFlags().HasAvailableFlags() {
		b.WriteString(".SH OPTIONS\n")
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				b.WriteString(manFlag(f))
			}
		})
	}
	if c.Example != "" {
		b.WriteString(".SH EXAMPLES\n.nf\n" + roff(c.Example) + "\n.fi\n")
	}
	b.WriteString(manRelatives(c))
	return b.String()
}

// manText writes paragraphs, with their lines as they are where a paragraph is indented.
func manText(text string) string {
	var b strings.Builder
	for i, paragraph := range strings.Split(text, "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		if strings.HasPrefix(paragraph, "  ") || strings.Contains(paragraph, "\n  ") {
			b.WriteString(".nf\n" + roff(paragraph) + "\n.fi\n")
		} else {
			b.WriteString(roff(paragraph) + "\n")
		}
	}
	return b.String()
}

func manFlag(f *pflag.Flag) string {
	value, usage := pflag.UnquoteUsage(Displayed(f))
	title := "--" + f.Name
	if f.Shorthand != "" {
		title = "-" + f.Shorthand + ", " + title
	}
	if value != "" {
		title += " " + value
	}
	return fmt.Sprintf(".TP\n.B %s\n%s\n", roff(title), roff(usage))
}

// manRelatives names the pages of the commands above and below.
func manRelatives(c *cobra.Command) string {
	var names []string
	if c.HasParent() {
		names = append(names, manName(c.Parent()))
	}
	for _, child := range c.Commands() {
		if !child.Hidden && child.Name() != "completion" && child.Name() != "help" {
			names = append(names, manName(child))
		}
	}
	return ".SH SEE ALSO\n.BR " + roff(strings.Join(names, " (1),\n.BR ")) + " (1)\n"
}

// roff protects the characters that man(7) reads as orders. A line that begins with a dot or an apostrophe, but not with
// an order of this package, gets an empty character before it.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...", "'", `\(aq`, "`", `\(ga`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") && !strings.HasPrefix(line, ".BR ") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
