package sparkdl.comm.ibatch

/** Values of the last `steps` steps. */
private[comm] final class RecentSteps[T](steps: Int) {
  private var kept = Vector.empty[T]

  def add(value: T): Unit = kept = (kept :+ value).takeRight(steps)
  def values: IndexedSeq[T] = kept
  def isEmpty: Boolean = kept.isEmpty
}

private[comm] object RecentSteps {

  /**
   * Return the median.
   *
   * @param values at least one
   */
  def median(values: IndexedSeq[Double]): Double = {
    val sorted = values.sorted
    (sorted((sorted.size - 1) / 2) + sorted(sorted.size / 2)) / 2
  }
}
