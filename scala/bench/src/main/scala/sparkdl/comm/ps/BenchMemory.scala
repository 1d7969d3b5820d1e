// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.io.RandomAccessFile
import java.nio.channels.FileChannel.MapMode
import java.nio.file.{Files, Path}

import scala.jdk.CollectionConverters._
import scala.util.Random

/**
 * Memory of one process, like a rank's, that other processes of its host map. It has `values`, and
 * room for a copy and an encoding of them. Its operations are those of ranks; the benchmark only
 * times them.
 */
final class BenchMemory(values: Array[Float]) extends AutoCloseable {
  import BenchMemory._

  private val count = values.length
  private val shape = new ShardLayout(IndexedSeq(count.toLong), 1).wholeBlock(0)
  private val copied = 4L * count
  private val encoded = 2 * copied

  // It emulates the worker's memory file: in memory, and without a name.
  private val name = Files.createTempFile(Path.of("/dev/shm"), "sparkdl-bench", ".segment")
  private val file = new RandomAccessFile(name.toFile, "rw")
  file.setLength(bytesOf(count))

  /** Path under which other processes find it. */
  val path: String = {
    val descriptors = Files.newDirectoryStream(Path.of(s"/proc/${ProcessHandle.current.pid}/fd"))
    try
      descriptors.asScala.find(link => Files.exists(link) && Files.isSameFile(link, name)).get.toString
    finally descriptors.close()
  }
  Files.delete(name)
  private val segment = Segment.mapFile(file, bytesOf(count), MapMode.READ_WRITE)
  segment.putFloats(0, values, count)

  /** Copy the values. */
  def copy(): Unit = segment.copy(0, copied, copied)

  /** Copy the values of another process of this host. */
  def copyFrom(neighbor: BenchNeighbor): Unit = {
    var at = copied
    neighbor.segment.slices(0, copied).foreach { part =>
      val length = part.remaining
      segment.put(at, part)
      at += length
    }
  }

  def encode(wire: String): Unit = BlockEncoding(wire).encode(segment, _.start * 4, shape, encoded)

  /** Decode to the place of the copy. */
  def decode(wire: String): Unit =
    BlockEncoding(wire).decode(segment, encoded, shape.ranges, copied + _.start * 4)

  /**
   * Return true if the copy has these numbers. Then clear it.
   *
   * @param within largest error, as a share of a number or of [[BenchMemory.Deviation]], whichever
   *    is more
   */
  def isCopyOf(numbers: Array[Float], within: Double): Boolean = {
    val found = new Array[Float](count)
    segment.getFloats(copied, found, count)
    segment.putFloats(copied, new Array[Float](count), count)
    found.indices.forall(i =>
      math.abs(found(i) - numbers(i)) <= within * math.max(math.abs(numbers(i)), Deviation)
    )
  }

  override def close(): Unit = {
    segment.close()
    file.close()
  }
}

object BenchMemory {

  /**
   * Standard deviation of the values, as of gradients. Some are normal numbers in 16 bits, and some
   * are subnormal.
   */
  private val Deviation = 1e-4

  def draw(count: Int, seed: Int): Array[Float] = {
    val random = new Random(seed)
    Array.fill(count)((random.nextGaussian() * Deviation).toFloat)
  }

  private def bytesOf(count: Int): Long = 10L * count

  /** Map the memory of `count` numbers that a process of this host has at `path`. */
  def neighbor(path: String, count: Int): BenchNeighbor = {
    val file = new RandomAccessFile(path, "r")
    try new BenchNeighbor(Segment.mapFile(file, bytesOf(count), MapMode.READ_ONLY))
    finally file.close()
  }
}

final class BenchNeighbor(private[ps] val segment: Segment) extends AutoCloseable {
  override def close(): Unit = segment.close()
}
