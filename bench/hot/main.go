// Command hot guards what the hot paths allocate: it runs the benchmarks of paths.txt and compares allocations and
// bytes of an operation with the figures that stand there. It fails if one grew. Counts hardly depend on the machine,
// unlike times, so a slower path is seen in CI that way.
//
//	go run ./bench/hot           # compare
//	go run ./bench/hot -update   # write the present figures; the commit says why they changed
package main

import (
	"bytes"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"
)

//go:embed paths.txt
var table string

// repeats is the number of runs of each benchmark; the least figures count.
const repeats = 3

// path is a row of the table: a hot path and what one operation of it allocates.
type path struct {
	name, pkg, bench string
	iterations       int
	count            figures
}

type figures struct{ allocs, bytes int }

// grew reports whether figures are above a baseline by more than their noise: maps grow at random places.
func (f figures) grew(from figures) bool {
	return f.allocs > from.allocs+max(1, from.allocs/20) || f.bytes > from.bytes+max(64, from.bytes/10)
}

func main() {
	update := flag.Bool("update", false, "write the present figures to bench/hot/paths.txt; run it in the root of the repository")
	flag.Parse()
	if err := run(os.Stdout, *update); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(out io.Writer, update bool) error {
	paths, err := parse(table)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "path\tallocations\tbytes\tbefore")
	var grown []string
	for i, p := range paths {
		now, err := measure(p)
		if err != nil {
			return err
		}
		if now.grew(p.count) {
			grown = append(grown, p.name)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d, %d\n", p.name, now.allocs, now.bytes, p.count.allocs, p.count.bytes)
		paths[i].count = now
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if update {
		return os.WriteFile("bench/hot/paths.txt", []byte(format(paths)), 0o644)
	}
	if len(grown) > 0 {
		return fmt.Errorf("these paths allocate more than bench/hot/paths.txt says: %s. Mend them, or run go run ./bench/hot -update and say in the commit why it must be",
			strings.Join(grown, ", "))
	}
	return nil
}

// measure runs the benchmark of a path.
func measure(p path) (figures, error) {
	cmd := exec.Command("go", "test", "-run", "^$", "-bench", p.bench, "-benchmem", "-benchtime", strconv.Itoa(p.iterations)+"x",
		"-count", strconv.Itoa(repeats), p.pkg)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return figures{}, fmt.Errorf("%s: %v: %w\n%s%s", p.name, cmd.Args, err, out, stderr.String())
	}
	least, err := leastOf(string(out))
	if err != nil {
		return figures{}, fmt.Errorf("%s: %v: %w\n%s", p.name, cmd.Args, err, out)
	}
	return least, nil
}

// leastOf returns the least figures among the results of one benchmark.
func leastOf(out string) (least figures, err error) {
	all := regexp.MustCompile(`(?m)^Benchmark.*\s(\d+) B/op\s+(\d+) allocs/op`).FindAllStringSubmatch(out, -1)
	if len(all) != repeats {
		return least, fmt.Errorf("%d results instead of %d: the name must match one benchmark", len(all), repeats)
	}
	for i, r := range all {
		bytes, errB := strconv.Atoi(r[1])
		allocs, errA := strconv.Atoi(r[2])
		if err := errors.Join(errA, errB); err != nil {
			return least, err
		}
		if i == 0 {
			least = figures{allocs, bytes}
		}
		least.allocs, least.bytes = min(least.allocs, allocs), min(least.bytes, bytes)
	}
	return least, nil
}

// parse reads the table: a row a line, fields divided by spaces, # begins a comment.
func parse(text string) (paths []path, err error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if len(f) != 6 {
			return nil, fmt.Errorf("bench/hot/paths.txt: %q has %d fields instead of 6", line, len(f))
		}
		var n [3]int
		for i, s := range f[3:] {
			if n[i], err = strconv.Atoi(s); err != nil {
				return nil, fmt.Errorf("bench/hot/paths.txt: %q: %w", line, err)
			}
		}
		paths = append(paths, path{name: f[0], pkg: f[1], bench: f[2], iterations: n[0], count: figures{n[1], n[2]}})
	}
	return paths, nil
}

// format writes the table.
func format(paths []path) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "# path\tpackage\tbenchmark\titerations\tallocations\tbytes")
	for _, p := range paths {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\n", p.name, p.pkg, p.bench, p.iterations, p.count.allocs, p.count.bytes)
	}
	_ = w.Flush() // a builder never fails
	return b.String()
}
