package lab

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

// instruction is one command of a document, for one machine, with what it prints.
type instruction struct {
	machine int // from 1; 0: none is named
	command string
	printed []string
}

// commands returns the commands of a document's console blocks, with what they print, in order. A comment may name the machine:
// "$ command # machine 1, ...".
func commands(text string) (all []instruction) {
	comment, inside := regexp.MustCompile(`^(.+?) +# (?:machine ([1-9])\b)?.*$`), false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		command, is := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console"
		case inside && is:
			one := instruction{command: command}
			if m := comment.FindStringSubmatch(command); m != nil {
				one.command = m[1]
				one.machine, _ = strconv.Atoi(m[2]) // one digit, or 0 for none
			}
			all = append(all, one)
		case inside && len(all) > 0:
			all[len(all)-1].printed = append(all[len(all)-1].printed, line)
		}
	}
	return all
}

// guide reads the commands of a section of the README, each for a machine.
func guide(text, section string) (all []instruction, err error) {
	_, text, found := strings.Cut(text, "\n## "+section+"\n")
	if !found {
		return nil, fault.New("lab.guide", fault.NotFound, "README.md has no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	all = commands(text)
	for _, one := range all {
		if one.machine == 0 {
			return nil, fault.New("lab.guide", fault.Invalid, "README.md, section %q: %q names no machine", section, one.command)
		}
	}
	return all, nil
}

// invitation returns the first word of a text that a reader copies; "" is none. A document shows only its beginning.
func invitation(text string) string {
	words := strings.Fields(text)
	if i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "bh1_") }); i >= 0 {
		return words[i]
	}
	return ""
}
