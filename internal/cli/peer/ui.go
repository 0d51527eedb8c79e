package peer

import (
	"context"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// UI makes the command ui.
func UI(con *term.Console) *cobra.Command {
	var open bool
	r := remote.New(con, &cobra.Command{
		Use: "ui", Short: "Show the address of the peer's web page", Args: command.NoArgs,
		Long: "Show the address of the peer's web page.\n\n" +
			"At a peer with authentication the link has a code: the page then acts for you. The code works\n" +
			"once, within two minutes. A session ends after 12 hours, or with your credentials.\n\n" +
			"--open passes the link to the browser as an argument, which other users of this host can see.",
		Example: "  blackholed ui\n  blackholed ui --open\n  blackholed ui --token-file admin.token",
	}, remote.DefaultTimeout)
	r.Cmd.Flags().BoolVar(&open, "open", false, "open the page in a browser")
	return r.Calls(func(ctx context.Context, c *client.Client, _ []string) error {
		link, err := c.Page(ctx)
		if err != nil {
			return err
		}
		if !link.Expires.IsZero() {
			con.Say("this link works once, until %s", link.Expires.Local().Format(time.TimeOnly))
		}
		if open {
			if err := openInBrowser(link.URL); err != nil {
				con.Say("cannot open a browser: %s", exit.Message(err))
			}
		}
		return r.Print(term.Document{Value: link, Table: term.Plain(term.Clean(link.URL) + "\n")})
	})
}

// openInBrowser starts the browser of the system. A peer elsewhere must not make it open anything but a page.
func openInBrowser(url string) error {
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
		return fault.New("", fault.Invalid, "%q is no address of a page", url)
	}
	program, args := "xdg-open", []string{url}
	switch runtime.GOOS {
	case "darwin":
		program = "open"
	case "windows":
		program, args = "rundll32", []string{"url.dll,FileProtocolHandler", url}
	}
	browser := exec.Command(program, args...) // it outlives this program
	if err := browser.Start(); err != nil {
		return fault.As("", fault.Unavailable, err)
	}
	return browser.Process.Release()
}
