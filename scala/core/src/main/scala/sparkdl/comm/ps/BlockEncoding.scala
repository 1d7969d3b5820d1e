package sparkdl.comm.ps

/** `count` bytes of a segment, beginning at `offset`. */
private[comm] final case class ByteRange(offset: Long, count: Long)

/**
 * How the float32 elements of a block look on their way. What implementations return is about bytes in a [[Segment]]; they
 * are called inside of its `access`, and by any number of threads at once, for different blocks.
 *
 * Elements lie where a function of their range says, as a byte offset: values that the model computes with in one flat
 * vector, those that the optimizer updates apart ([[SegmentMap.master]]).
 */
private[comm] trait BlockEncoding {

  /** As in spark.sparkdl.comm.ps.wire. */
  def name: String

  /**
   * Most bytes that a block has; at least 1 unless the shape is empty. The block of several layers has at most as many as
   * their blocks apart.
   */
  def maxBytes(shape: BlockShape): Long

  /** About the bytes of a block of so many elements, if the share `density` of them is not zero. */
  def expectedBytes(elements: Long, density: Double): Long

  /** Bytes of memory that [[encode]] needs for what cannot be served from where it lies; likewise. */
  def stagingBytes(shape: BlockShape): Long

  /** Whether a block may have so many bytes, checked before they come. */
  def canHave(shape: BlockShape, bytes: Long): Boolean

  /**
   * Makes a block of the elements at `from`.
   *
   * @return its bytes in the order in which they travel: one range, which begins at `staging`, or else some of them lie where
   *   the elements do
   */
  def encode(memory: Segment, from: ElementRange => Long, shape: BlockShape, staging: Long): IndexedSeq[ByteRange]

  /** Where a block of `bytes` bytes lies that [[encode]] made of the same, as it said. */
  def placeOf(from: ElementRange => Long, shape: BlockShape, staging: Long, bytes: Long): IndexedSeq[ByteRange] =
    IndexedSeq(ByteRange(staging, bytes))

  /** Replace the elements at `to` by the sum of the blocks `before`, of these elements and of the blocks `after`, in this order. */
  def addInto(
      memory: Segment,
      before: Seq[ByteRange],
      after: Seq[ByteRange],
      shape: BlockShape,
      to: ElementRange => Long
  ): Unit
}

private[comm] object BlockEncoding {
  private val all: Seq[DenseEncoding] = Seq(Fp32, Bf16, Fp16)

  /** Of gradients whose encoding is not that of parameters. */
  val Sparse: BlockEncoding = SparseEncoding

  /** @throws IllegalArgumentException if there is none of this name */
  def apply(name: String): DenseEncoding = all
    .find(_.name == name)
    .getOrElse(throw new IllegalArgumentException(
      s"spark.sparkdl.comm.ps.wire=$name: one of ${all.map(_.name).mkString(", ")}"
    ))
}

/** Those of the two kinds of blocks. */
private[comm] final case class Encodings(parameters: DenseEncoding, gradients: BlockEncoding)

private[comm] object Encodings {
  def apply(both: DenseEncoding): Encodings = Encodings(both, both)
}
