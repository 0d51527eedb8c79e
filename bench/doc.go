// Package bench measures whole parts of the daemon beside comparable systems. Benchmarks of one
// package stand beside that package; README.md lists both with figures.
package bench
