package cluster

import (
	"fmt"
	"os"
	"time"
)

var debugEvery = os.Getenv("DEBUG") != ""
var debugNext time.Duration
var debugSplit, debugOwn, debugOwnD [3]int

func (s *simulation) debug() {
	if !debugEvery || !s.cfg.Gaps || s.now < debugNext {
		return
	}
	debugNext = s.now + 10*time.Second
	fmt.Printf("%4.0fs split %v own %v ", s.now.Seconds(), debugSplit, debugOwn)
	debugSplit, debugOwn = [3]int{}, [3]int{}
	for i := range s.nodes {
		u := s.nodes[i].model.Usage()
		k := 0
		for _, n := range s.nodes[i].unbegun {
			if n.handed != nil {
				k++
			}
		}
		fmt.Printf("| %d+%d (%d,%d) %d p%d ", u.Running, u.Waiting, len(s.nodes[i].unbegun), k, u.UsedBlocks, u.Preemptions)
	}
	fmt.Println()
}
