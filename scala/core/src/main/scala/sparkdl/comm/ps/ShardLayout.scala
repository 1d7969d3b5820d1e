// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

/** Range of `count` consecutive elements of the flat parameter vector, from `start` on. */
private[comm] final case class ElementRange(start: Long, count: Long) {
  def end: Long = start + count
}

/**
 * Ranges of the flat vector that travel in one block, in the order of transfer. The `packed` short
 * ranges come first. They are gathered into one buffer, so that a network of a thousand tiny layers
 * does not take a thousand writes to a socket. The `direct` ranges are served from their place.
 */
private[comm] final case class BlockShape(
    packed: IndexedSeq[ElementRange],
    direct: IndexedSeq[ElementRange]
) {
  val packedCount: Long = packed.map(_.count).sum
  val count: Long = packedCount + direct.map(_.count).sum
  val ranges: IndexedSeq[ElementRange] = packed ++ direct

  private lazy val begins: Array[Long] = ranges.scanLeft(0L)(_ + _.count).toArray

  /** Return the ranges of the block's elements number `from` until `until`. */
  def part(from: Long, until: Long): Seq[ElementRange] = {
    val found = java.util.Arrays.binarySearch(begins, from)
    val first = if (found < 0) -found - 2 else found
    ranges.indices.drop(first).takeWhile(begins(_) < until).map { index =>
      val skipped = math.max(0, from - begins(index))
      ElementRange(
        ranges(index).start + skipped,
        math.min(begins(index + 1), until) - begins(index) - skipped
      )
    }
  }
}

/**
 * Striping of a flat vector of layers over servers. Every layer is cut into `world` stripes, so
 * that each pull uses all servers. Stripes begin at multiples of a cache line within their layer.
 * The server with the first (largest) stripe rotates with the layer, so that many tiny layers do
 * not all land on server 0.
 *
 * @param layers elements of each layer; layer i+1 begins where layer i ends
 */
private[comm] final class ShardLayout(val layers: IndexedSeq[Long], val world: Int) {
  require(world >= 1, s"world=$world: it must be at least 1")
  require(layers.nonEmpty, "a network without parameters has nothing to train")
  require(layers.forall(_ > 0), s"layer sizes must be positive: ${layers.mkString(", ")}")

  private val starts: IndexedSeq[Long] = layers.scanLeft(0L)(_ + _)

  val total: Long = starts.last

  /**
   * Return the stripe of `layer` that `server` owns; None if the layer is too small to have one
   * there.
   */
  def stripe(layer: Int, server: Int): Option[ElementRange] = {
    val size = layers(layer)
    val lines = (size + ShardLayout.LineElements - 1) / ShardLayout.LineElements
    val chunk = (lines + world - 1) / world * ShardLayout.LineElements
    val first = Math.floorMod(server - layer, world) * chunk
    if (first >= size) None
    else Some(ElementRange(starts(layer) + first, math.min(chunk, size - first)))
  }

  /**
   * Return the ranges that `server` owns of layers `firstLayer` to `lastLayer` (both included), in
   * layer order.
   */
  def shard(server: Int, firstLayer: Int, lastLayer: Int): IndexedSeq[ElementRange] =
    (firstLayer to lastLayer).flatMap(layer => stripe(layer, server))

  def shard(server: Int): IndexedSeq[ElementRange] = shard(server, 0, layers.size - 1)

  def block(server: Int, firstLayer: Int, lastLayer: Int): BlockShape = {
    val (short, long) =
      shard(server, firstLayer, lastLayer).partition(_.count < ShardLayout.PackBelow)
    BlockShape(short, long)
  }

  def wholeBlock(server: Int): BlockShape = block(server, 0, layers.size - 1)
}

private[ps] object ShardLayout {

  /** Elements of a 64-byte cache line in float32. */
  val LineElements = 16L

  /**
   * Elements below which a stripe is gathered (16 KiB in float32). Copying it costs less than a
   * system call for it.
   */
  val PackBelow = 4096L
}
