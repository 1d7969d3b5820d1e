package sparkdl.comm.bigdl

/** The last `size` values. */
private[bigdl] final class Window[T](size: Int) {
  private var kept = Vector.empty[T]

  def add(value: T): Unit = kept = (kept :+ value).takeRight(size)
  def values: IndexedSeq[T] = kept
  def isEmpty: Boolean = kept.isEmpty
}

private[bigdl] object Window {

  /** @param values at least one */
  def median(values: IndexedSeq[Double]): Double = {
    val sorted = values.sorted
    (sorted((sorted.size - 1) / 2) + sorted(sorted.size / 2)) / 2
  }
}
