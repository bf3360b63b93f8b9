package plan

import (
	"strings"

	"github.com/cognitora/dataplane/router/apierror"
)

// inChain returns the error for the client in place of err, that of the present step. The model
// that the client has named exists, so a model of its chain that does not exist is not the client's
// mistake, and a node may yet come with it.
func (c *Cascade) inChain(err *apierror.Error) *apierror.Error {
	if err == nil || err.Code != apierror.CodeModelNotFound {
		return err
	}
	return &apierror.Error{
		Status: 503, Code: "cascade_model_missing", Param: "model", RetryAfterSeconds: 1,
		Message: "the model `" + c.name + "` is a cascade of " + strings.Join(c.chain, ", ") + ", and no node here " +
			"serves `" + c.chain[c.step] + "`, which should answer this request",
	}
}
