package archtest

func sleepSamples() []sample {
	const imports = "package keeper\n\nimport (\n\t\"testing\"\n\t\"testing/synctest\"\n\t\"time\"\n)\n\n"
	return []sample{
		{
			rule: "sleep", name: "bubble",
			files: files{"pkg/keeper/a_test.go": imports + `
func TestLiteral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { time.Sleep(1); settle() })
}

func TestNamed(t *testing.T) { synctest.Test(t, inside) }

func TestOwn(t *testing.T) {
	bubble(t, func() { time.Sleep(1) })
}

func inside(t *testing.T) { settle(); w.wait() }

func settle() { time.Sleep(1); settle() }

func (w world) wait() { time.Sleep(1) }

func bubble(t *testing.T, f func()) {
	synctest.Test(t, func(*testing.T) { f() })
}
`},
		},
		{
			rule: "sleep", name: "outside",
			files: files{"pkg/keeper/a_test.go": imports + `
func TestPlain(t *testing.T) {
	time.Sleep(1)
	synctest.Test(t, func(t *testing.T) { mixed() })
	mixed()
	t.Run("x", func(t *testing.T) { time.Sleep(1) })
	synctest.Wait()
}

func mixed() {
	time.Sleep(1)
}

func unused() {
	time.Sleep(1)
}
`},
			want: []string{"pkg/keeper/a_test.go:11", "pkg/keeper/a_test.go:14", "pkg/keeper/a_test.go:19", "pkg/keeper/a_test.go:23"},
		},
		{
			rule: "sleep", name: "shipped",
			files: files{
				"pkg/keeper/a.go": "package keeper\n\nimport \"time\"\n\nfunc f() { time.Sleep(1) }\n",
				"testnet/run.go":  "package main\n\nimport \"time\"\n\nfunc f() { time.Sleep(1) }\n",
				"pkg/keeper/b.go": "package keeper\n\nfunc g(time clock) { time.Sleep(1) }\n",
				"pkg/keeper/c.go": "package keeper\n\nimport clock \"time\"\n\nfunc h() { clock.Sleep(1) }\n",
			},
			want: []string{"pkg/keeper/a.go:5", "pkg/keeper/c.go:5"},
		},
	}
}
