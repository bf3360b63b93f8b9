// Package cascade has the commands for cascades of models.
package cascade

import (
	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
)

// Command is cgn-ctl cascade.
func Command(a *cli.App) *cobra.Command {
	return cli.Group("cascade", "Set up cascades of models", newFit(a))
}
