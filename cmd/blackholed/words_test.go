package main

import (
	"regexp"
	"strings"
)

// words translates between the values of a document and the values of this run.
type words struct {
	ports map[string]string // document to run, of one machine
	known map[string]string // document to run: leases, peers and numbers, of all machines
	paths *strings.Replacer // document to run, of one machine
	plain *strings.Replacer // run to document

	number, spaces *regexp.Regexp
	private        *regexp.Regexp // words, or numbers in them, that differ in each run
	free           *regexp.Regexp // values that differ at each call
}

// newWords returns the words of a machine whose files are below dir. All machines of a document share known.
func newWords(dir string, known map[string]string) *words {
	var there, back []string
	for _, part := range []string{"/etc/", "/usr/local/", "/var/"} {
		there = append(there, " "+part, " "+dir+part, "="+part, "="+dir+part)
		back = append(back, dir+part, part)
	}
	return &words{
		ports: map[string]string{}, known: known,
		paths: strings.NewReplacer(there...), plain: strings.NewReplacer(back...),
		number: regexp.MustCompile(`\b\d+\b`), spaces: regexp.MustCompile(`[ \t]+`),
		private: regexp.MustCompile(`lease-[0-9a-f]{32}|12D3KooW[1-9A-HJ-NP-Za-km-z]{44}|…[1-9A-HJ-NP-Za-km-z]{8}|bh1_[\w-]+(?:\.\.\.)?|` +
			`\b[0-9a-f]{13,16}\b|\b[0-9a-f]{64}\b|/tcp/\d+|` +
			`(?i:\bindex\\?"?[:=] ?"?|\brevision\\?"?[:=] ?"?|\brevision +|\bid: |-id: |\btoken )(\d+)`),
		free: regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z|\. \d+ (IN )?(A|AAAA|SRV|TXT) |\b\d+(\.\d+)? ms\b|\bround trip \d+(\.\d+)?(µs|ms|s)\b|\bin \d+(\.\d+)?(µs|ms|s)$|\b\d{13}\b|` +
			`/ (?:-|reachable)(?: \d+(?:\.\d+)? ms)?(?:, \S+ ago)?( |$)|, from (?:the network|the cache, found \S+ ago|this peer's index), in \S+|this peer, \S+ ago`),
	}
}

// actual translates a command of the document for this run.
func (w *words) actual(command string) string {
	command = w.number.ReplaceAllStringFunc(command, func(n string) string {
		if port, ok := w.ports[n]; ok {
			return port
		}
		return n
	})
	return w.private.ReplaceAllStringFunc(w.paths.Replace(command), func(word string) string {
		m := w.private.FindStringSubmatch(word)
		if m[1] == "" {
			m[1] = m[0]
		}
		if known, ok := w.known[m[1]]; ok {
			return strings.TrimSuffix(word, m[1]) + known
		}
		return word
	})
}

// printed replaces the ports in output by the standard ports.
func (w *words) printed(output string) string {
	standard := map[string]string{}
	for port, is := range w.ports {
		standard[is] = port
	}
	return w.number.ReplaceAllStringFunc(w.plain.Replace(strings.ReplaceAll(output, "\r", "")), func(n string) string {
		if port, ok := standard[n]; ok {
			return port
		}
		return n
	})
}

// compare compares the output of a command with the document. It returns the lines for the
// document: unchanged where they match.
func (w *words) compare(wanted, got []string) (lines []string, ok bool) {
	ok = true
	for n, want := range wanted {
		if want == "..." {
			lines = append(lines, want)
			got = got[max(0, len(got)-(len(wanted)-n-1)):]
			continue
		}
		if len(got) == 0 {
			return lines, false
		}
		line := w.learn(want, got[0])
		if got = got[1:]; w.form(line) == w.form(want) {
			line = want
		} else {
			ok = false
		}
		lines = append(lines, line)
	}
	return append(lines, got...), ok && len(got) == 0
}

// learn translates a printed line to the words that the document has in the same places, and
// remembers new words.
func (w *words) learn(want, got string) string {
	wanted, n := w.private.FindAllStringSubmatch(want, -1), 0
	return w.private.ReplaceAllStringFunc(got, func(word string) string {
		is := w.private.FindStringSubmatch(word)
		if n == len(wanted) {
			return word
		}
		as := wanted[n]
		n++
		for _, m := range [][]string{is, as} {
			if m[1] == "" {
				m[1] = m[0]
			}
		}
		if _, known := w.known[as[1]]; !known {
			w.known[as[1]] = is[1]
		}
		if w.known[as[1]] != is[1] {
			return word
		}
		return strings.TrimSuffix(word, is[1]) + as[1]
	})
}

// form is a line without the values that may differ.
func (w *words) form(line string) string {
	line = strings.TrimSpace(w.spaces.ReplaceAllString(line, " "))
	return w.free.ReplaceAllStringFunc(line, func(word string) string {
		if strings.HasPrefix(word, ".") {
			return w.number.ReplaceAllString(word, "TTL")
		}
		return "TIME"
	})
}
