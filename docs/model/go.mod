module tenure/docs/model

go 1.26.0
