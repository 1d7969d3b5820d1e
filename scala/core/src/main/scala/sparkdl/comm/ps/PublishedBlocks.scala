package sparkdl.comm.ps

import java.nio.ByteBuffer
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import org.slf4j.LoggerFactory

import sparkdl.comm.transport.Blocks

/** The blocks that one rank has published and not yet retired. */
private[ps] final class PublishedBlocks(job: Long, blocks: Blocks) {
  import PublishedBlocks._

  private val labels = new ConcurrentHashMap[String, Label]
  private var warnedOfSpill = false

  def put(name: String, kind: Notice.Kind, version: Long, chunks: Array[ByteBuffer]): Unit = {
    val bytes = chunks.map(_.remaining.toLong).sum
    labels.put(name, Label(kind, version))
    blocks.put(job, name, chunks)
    if (!warnedOfSpill && blocks.status(job, name).exists { case (_, disk) => disk > 0 }) {
      warnedOfSpill = true
      log.warn(
        "Spark has no free storage memory for block {} of {} bytes and keeps it on disk, which makes every iteration slower:" +
          " set spark.memory.offHeap.enabled=true and spark.memory.offHeap.size (blocks of a rank take as much as the" +
          " model), raise spark.executor.memory, or unpersist what is cached",
        name,
        bytes
      )
    }
  }

  /**
   * Retires all blocks of a version.
   *
   * @return one that a reader still held when `over` said to wait no longer
   */
  def retire(kind: Notice.Kind, version: Long, over: () => Boolean): Option[String] = {
    val names = labels.asScala.collect { case (name, Label(`kind`, `version`)) => name }.toSeq
    names.find { name =>
      val gone = blocks.retire(job, name, over)
      if (gone) labels.remove(name)
      !gone
    }
  }

  /** Retires everything; false if readers were still there when `over` said to wait no longer. */
  def clear(over: () => Boolean): Boolean = {
    labels.keySet.removeIf(name => blocks.retire(job, name, over))
    labels.isEmpty
  }
}

private[ps] object PublishedBlocks {
  private final case class Label(kind: Notice.Kind, version: Long)
  private val log = LoggerFactory.getLogger(classOf[PublishedBlocks])
}
