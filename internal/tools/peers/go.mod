// Peers for the tests of the other tools, apart from the main module, which none of them has: it needs the standard library alone.
module github.com/blackhole/blackhole/internal/tools/peers

go 1.26.0
