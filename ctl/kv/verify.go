package kv

import (
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/kvcached"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

// verified is the JSON output of kv verify.
type verified struct {
	Segments int      `json:"segments"`
	Unsealed int      `json:"unsealed_segments"` // left by a crash
	Records  int      `json:"records"`           // valid records, including replaced and deleted ones
	Bytes    int64    `json:"bytes"`
	Live     int      `json:"live_blocks"`
	Lost     int      `json:"lost_blocks"` // blocks without a valid record, which are misses
	Bad      int      `json:"bad"`
	Unclean  bool     `json:"unclean"` // the daemon was not stopped cleanly
	Dropped  bool     `json:"dropped"` // the index is damaged: the next start drops all blocks
	Skipped  bool     `json:"skipped"` // a daemon has run without SSD since: the next start drops all blocks
	Damage   []string `json:"damage"`  // the first 1000 places
}

// mostDamage is how many damaged places are listed.
const mostDamage = 1000

func newVerify(a *cli.App) *cobra.Command {
	var c kvcached.SSDConfig
	cmd := &cobra.Command{
		Use: "verify DIR", Short: "Read everything on the SSD of a cache that is not running",
		Args: cli.OneArgument("DIR"),
		Long: "Reads the data directory of a cgn-kvcached that does not run, and compares addresses and checksums. " +
			"Ends with an error if\n" +
			"anything is damaged, or if a live block has no sound record (LOST). Nothing has to be done about that: " +
			"such a block is a miss\n" +
			"when the daemon runs again.\n\n" +
			"LIVE BLOCKS are those that the daemon would have after a start: those that the index names, and after a " +
			"crash also what was\n" +
			"written since the last checkpoint of the index, about 64 MiB, which is found in the segments " +
			"themselves. LOST are of those. BAD counts damaged records, segments that were cut\n" +
			"short and those that are missing though the index or the log says that they must be there. After a crash " +
			"nothing tells of the newest segments\n" +
			"if they were removed by hand. Where the index is damaged or missing, the next start drops all blocks, and " +
			"none is live.",
		Example: "  cgn-ctl kv verify /var/lib/cognitora/kvcached",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			told, found := time.Now(), []string{}
			v, err := kvcached.Verify(ctx, args[0], c, func(d ssd.Damage) {
				if len(found) < mostDamage {
					found = append(found, damageText(&d))
				}
			}, func(done, all int64) {
				if time.Since(told) >= time.Second {
					told = time.Now()
					fmt.Fprintf(a.Err, "%d of %d MiB\n", done>>20, all>>20)
				}
			})
			if errors.Is(err, kvcached.ErrLocked) {
				return inUse(err)
			}
			if err != nil && !errors.Is(err, kvcached.ErrDamaged) {
				return err
			}
			r := verified{v.Segments, v.Unsealed, v.Records, v.Bytes, v.Live, v.Lost, v.Bad, v.Unclean, v.Dropped,
				v.Skipped, found}
			return errors.Join(a.Show(r, func(t *cli.Table) {
				t.Row("LIVE BLOCKS", "LOST", "RECORDS", "BAD", "SEGMENTS", "UNSEALED", "BYTES")
				t.Row(r.Live, r.Lost, r.Records, r.Bad, r.Segments, r.Unsealed, r.Bytes)
				switch {
				case r.Dropped:
					t.Line("the index, ssd/rows, is damaged or missing: the next start drops all blocks and begins with " +
						"an empty tier")
				case r.Skipped:
					t.Line("the daemon has run without SSD since (--ssd 0): the next start with SSD drops all blocks and " +
						"begins with an empty tier")
				case r.Unclean:
					t.Line("the directory was not closed cleanly: the blocks written since the last checkpoint were " +
						"found in the segments, as a start does")
				}
				for _, d := range r.Damage {
					t.Line(d)
				}
			}), err)
		},
	}
	cmd.Flags().StringVar(&c.KeyFile, "key-file", "", "the daemon's ssd.key_file, where payloads are sealed")
	return cmd
}

// inUse is the error of a directory that a daemon uses. The fix in the daemon's own error is for a
// start of another daemon.
func inUse(locked error) error {
	who, _, _ := strings.Cut(locked.Error(), "; stop that one")
	return cli.WithHint(errors.New(who), "stop that daemon first, or verify a copy of its directory")
}

func damageText(d *ssd.Damage) string {
	if d.Page == 0 {
		return fmt.Sprintf("%s: %v", d.File, d.Err)
	}
	return fmt.Sprintf("%s, page %d: %v", d.File, d.Page, d.Err)
}
