// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

/**
 * The paper's two greedy algorithms. Both look for batches that satisfy its Eq. 5: the pull of a
 * batch takes at least as long as computing the batch before it, `T_s + T_t[l_k+1..l_{k+1}] >=
 * C[l_{k-1}+1..l_k]`.
 *
 * The paper leaves two questions open:
 *
 *  - Which l_2, if several pairs have the chosen l_1? The one with the smallest difference of the
 *   two sides, as in its later steps. Algorithm 2 does the same.
 *  - What if no layer satisfies Eq. 5? Then the batch extends to layer L, or in Algorithm 2 back to
 *   layer 1. If that happens in the first step, the other batch is layer 1 alone, which violates
 *   Eq. 5 least.
 *
 * Sums of non-negative times only grow with their layers. So the candidates of a step are an
 * interval, and the smallest difference is at one end of it.
 */
private[ibatch] object Greedy {

  /** Run Algorithm 1, from l_1 to l_N. */
  def forwards(times: Pipeline): IndexedSeq[Int] = {
    val layers = times.layers
    if (layers == 1) return IndexedSeq(1)

    /**
     * Return the least l_x for which the pull of `after` + 1 to l_x takes at least `before`
     * seconds; L if there is none.
     */
    def next(after: Int, before: Double): Int =
      (after + 1 until layers).find(last => times.pull(after, last) >= before).getOrElse(layers)

    // Step 1: the largest C[1..l_1]. Of these the smallest T_s + T_t[1..l_1], which has the
    // smallest l_1.
    val possible =
      (1 until layers).filter(first => times.pull(first, layers) >= times.compute(0, first))
    val first = if (possible.isEmpty) 1 else possible.maxBy(times.compute(0, _))
    // Step 2.
    val ends = IndexedSeq.newBuilder[Int]
    var (before, last) = (0, first)
    ends += last
    while (last < layers) {
      val end = next(last, times.compute(before, last))
      before = last
      last = end
      ends += last
    }
    ends.result()
  }

  /** Run Algorithm 2, from l_{N-1} to l_1. */
  def backwards(times: Pipeline): IndexedSeq[Int] = {
    val layers = times.layers
    if (layers == 1) return IndexedSeq(1)

    /**
     * Return the least l_x for which computing l_x + 1 to `last` takes at most `next` seconds; 0 if
     * there is none.
     */
    def before(last: Int, next: Double): Int =
      (0 until last).find(after => times.compute(after, last) <= next).getOrElse(0)

    // Step 1: the largest C[l_{N-2}+1..l_{N-1}]. Of these the smallest C[l_{N-1}+1..L], and of
    // these the last layer.
    val possible =
      (1 until layers).filter(last => times.compute(last - 1, last) <= times.pull(last, layers))
    def overlap(last: Int): Double = times.compute(before(last, times.pull(last, layers)), last)
    val last = if (possible.isEmpty) 1 else possible.reverse.maxBy(overlap)
    // Step 2.
    var ends = List(last, layers)
    var begin = before(last, times.pull(last, layers))
    while (begin > 0) {
      val next = times.pull(begin, ends.head)
      ends = begin :: ends
      begin = before(begin, next)
    }
    ends.toIndexedSeq
  }
}
