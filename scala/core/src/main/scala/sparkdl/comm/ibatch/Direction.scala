package sparkdl.comm.ibatch

/** Which way layers travel. */
private[ibatch] sealed abstract class Direction(val name: String) {

  /** What is in the order of the layers, in the order in which they travel. */
  def travelling[T](layers: IndexedSeq[T]): IndexedSeq[T]
}

private[ibatch] object Direction {
  case object Pull extends Direction("pull") {
    override def travelling[T](layers: IndexedSeq[T]): IndexedSeq[T] = layers
  }

  /** Backward makes the gradients of the last layer first. */
  case object Push extends Direction("push") {
    override def travelling[T](layers: IndexedSeq[T]): IndexedSeq[T] = layers.reverse
  }

  /** @throws IllegalArgumentException if there is none of this name */
  def apply(name: String): Direction = Seq(Pull, Push)
    .find(_.name == name)
    .getOrElse(throw new IllegalArgumentException(s"direction $name: pull or push"))
}
