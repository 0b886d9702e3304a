#!/bin/sh
# Makes the pages of docs/samples from MovieLens-100K: a report, a comparison, a sweep; and the README's picture, which
# needs Chromium.
# Usage: scripts/samples.sh PYTHON
set -eu
python=$1
out=results/samples
quick="--flagfile=experiments/presets/movielens_quick.flags --rounds_per_eval=5"
# Rates chosen by validation clients: fedpersonal/suite/leaderboard/settings.json.
tuned="--method=fed_avg_finetuning --finetuning_learning_rate=0.02"
tuned="$tuned --client_learning_rate=0.1 --server_learning_rate=0.03"

for seed in 0 1 2; do
    "$python" -m experiments.movielens $quick --seed=$seed --output_dir=$out/fed_recon_$seed
    "$python" -m experiments.movielens $quick $tuned --seed=$seed --output_dir=$out/fed_avg_$seed
done
"$python" -m experiments.compare $out/fed_avg_? $out/fed_recon_? --output=$out/compare.html
"$python" -m experiments.sweep movielens $quick --output_dir=$out/sweep \
    --grid="client_learning_rate=0.03,0.1,0.3;embedding_dim=4,16"
mkdir -p docs/samples
cp $out/fed_recon_0/report.html $out/compare.html $out/sweep/sweep.html docs/samples
"$python" build_tools/readme_picture.py $out/fed_recon_0
