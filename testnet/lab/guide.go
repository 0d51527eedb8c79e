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
	machine int // from 1
	command string
	printed []string
}

// guide reads the commands of a section of the README. A comment names the machine: "$ command # machine 1, ...".
func guide(text, section string) (all []instruction, err error) {
	const op = "lab.guide"
	_, text, found := strings.Cut(text, "\n## "+section+"\n")
	if !found {
		return nil, fault.New(op, fault.NotFound, "README.md has no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	comment := regexp.MustCompile(`^\$ (.+?) +# machine ([1-9])\b.*$`)
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		m := comment.FindStringSubmatch(line)
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console"
		case !inside:
		case m != nil:
			machine, _ := strconv.Atoi(m[2]) // one digit
			all = append(all, instruction{machine: machine, command: m[1]})
		case strings.HasPrefix(line, "$") || len(all) == 0:
			return nil, fault.New(op, fault.Invalid, "README.md, section %q: %q names no machine", section, line)
		default:
			last := &all[len(all)-1]
			last.printed = append(last.printed, line)
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
