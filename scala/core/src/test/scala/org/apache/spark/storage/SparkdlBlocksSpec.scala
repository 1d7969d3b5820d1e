// SPDX-License-Identifier: Apache-2.0

package org.apache.spark.storage

import java.io.{ByteArrayOutputStream, IOException}
import java.net.{BindException, InetAddress, ServerSocket}
import java.nio.ByteBuffer
import java.util.concurrent.{LinkedBlockingQueue, TimeUnit}

import scala.jdk.CollectionConverters._

import org.apache.logging.log4j.{Level, LogManager}
import org.apache.logging.log4j.core.{LogEvent, LoggerContext}
import org.apache.logging.log4j.core.appender.AbstractAppender
import org.apache.logging.log4j.core.config.{Configurator, Property}

import org.apache.spark.storage.memory.MemoryStore
import org.apache.spark.{SparkConf, SparkContext, SparkEnv, SparkdlExecutor}
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.transport.{Chunk, ChunkAnswer, ChunkPeer, PeerMessageReceiver}

/** Tests of blocks in a real BlockManager. */
class SparkdlBlocksSpec extends AnyFunSuite with BeforeAndAfterAll {
  private val Job = 1L << 61
  private val OffHeapBytes = 1 << 20
  private var context: SparkContext = _
  private lazy val executor = new SparkdlExecutor(context.getConf)
  private lazy val blocks = executor.blocks
  private lazy val source = new SparkdlChunks(SparkEnv.get, context.getConf, "127.0.0.1")

  override def beforeAll(): Unit = {
    val conf = new SparkConf(false)
      .setMaster("local[2]")
      .setAppName("blocks")
      .set("spark.ui.enabled", "false")
      .set("spark.driver.host", "127.0.0.1")
      .set("spark.driver.bindAddress", "127.0.0.1")
      .set("spark.testing.memory", (600L << 20).toString)
      .set("spark.memory.offHeap.enabled", "true")
      .set("spark.memory.offHeap.size", OffHeapBytes.toString)
    context = new SparkContext(conf)
  }

  override def afterAll(): Unit = context.stop()

  private def direct(bytes: Array[Byte]): ByteBuffer = {
    val buffer = ByteBuffer.allocateDirect(bytes.length)
    buffer.put(bytes).flip()
    buffer
  }

  private def random(count: Int): Array[Byte] = {
    val bytes = new Array[Byte](count)
    new scala.util.Random(count).nextBytes(bytes)
    bytes
  }

  /** Return a condition that holds after so many milliseconds. */
  private def after(milliseconds: Long): () => Boolean = {
    val end = System.nanoTime + TimeUnit.MILLISECONDS.toNanos(milliseconds)
    () => System.nanoTime >= end
  }

  private def soon: () => Boolean = after(5000)

  private def read(name: String): Seq[Byte] = {
    val received = new ByteArrayOutputStream
    blocks.read(Job, name) { from =>
      val part = new Array[Byte](from.remaining)
      from.get(part)
      received.write(part)
    }
    received.toByteArray.toSeq
  }

  /** Read a block as another executor would, in two chunks. */
  private def serve(name: String, bytes: Int): Seq[Byte] = {
    val half = bytes / 2
    Seq((0, half), (half, bytes - half)).flatMap { case (offset, length) =>
      val data = source.open(Chunk(Job, name, offset.toLong, length)).get
      val part = new Array[Byte](length)
      data.nioByteBuffer().get(part)
      data.release()
      part.toSeq
    }
  }

  test("a block of several pieces is read completely, locally and over the network") {
    val pieces = Seq(random(10), random(3000000), random(77))
    blocks.put(Job, "sparkdl_many", pieces.map(direct).toArray)
    val whole = pieces.flatten
    assert(read("sparkdl_many") === whole)
    assert(serve("sparkdl_many", whole.size) === whole)
    assert(blocks.retire(Job, "sparkdl_many", soon))
    assert(blocks.status(Job, "sparkdl_many").isEmpty)
  }

  test("Spark logs the user's blocks as configured, and the plugin's blocks never") {
    val store = classOf[MemoryStore].getName
    val logging = LogManager.getContext(false).asInstanceOf[LoggerContext]
    val before = LogManager.getLogger(store).getLevel
    val heard = new LinkedBlockingQueue[String]
    val kept = new AbstractAppender("kept", null, null, false, Property.EMPTY_ARRAY) {
      override def append(event: LogEvent): Unit =
        if (event.getLoggerName == store) heard.put(event.getMessage.getFormattedMessage)
    }
    kept.start()
    try {
      Configurator.setLevel(store, Level.INFO)
      logging.getRootLogger.addAppender(kept)
      val ours = new SparkdlExecutor(context.getConf).blocks
      assert(LogManager.getLogger(store).getLevel === Level.INFO)
      ours.put(Job, "sparkdl_ours", Array(direct(random(100))))
      ours.read(Job, "sparkdl_ours")(bytes => bytes.position(bytes.limit()))
      assert(ours.retire(Job, "sparkdl_ours", () => true))
      val theirs = new org.apache.spark.util.io.ChunkedByteBuffer(Array(direct(random(100))))
      val id = BroadcastBlockId(Job, "theirs")
      SparkEnv.get.blockManager.putBytes(
        id,
        theirs,
        StorageLevel.MEMORY_ONLY_SER,
        tellMaster = false
      )
      SparkEnv.get.blockManager.removeBlock(id, tellMaster = false)
      assert(heard.asScala.count(_.contains("_theirs stored")) === 1)
      assert(!heard.asScala.exists(_.contains("_sparkdl_")))
    } finally {
      logging.getRootLogger.removeAppender(kept)
      Configurator.setLevel(store, before)
    }
  }

  test("a block uses the caller's memory, which stays valid after its removal") {
    val memory = direct(Array[Byte](1, 2, 3, 4))
    blocks.put(Job, "sparkdl_view", Array(memory.slice()))
    memory.put(0, 9.toByte)
    assert(serve("sparkdl_view", 4) === Seq[Byte](9, 2, 3, 4))
    assert(blocks.retire(Job, "sparkdl_view", soon))
    assert(memory.get(1) === 2)
  }

  test("under memory pressure a block is spilled, not lost, and Spark gets its memory back") {
    val bytes = random(5000000)
    blocks.put(Job, "sparkdl_pressed", Array(direct(bytes)))
    assert(blocks.status(Job, "sparkdl_pressed") === Some((5000000L, 0L)))
    // Pieces are smaller than the block: Spark evicts only as many blocks as it needs.
    val cached =
      context.parallelize(0 until 400, 400).map(_ => new Array[Byte](1 << 20)).persist(
        StorageLevel.MEMORY_ONLY
      )
    cached.count()
    assert(
      blocks.status(Job, "sparkdl_pressed") === Some((0L, 5000000L)),
      "the test needs an evicted block"
    )
    assert(serve("sparkdl_pressed", bytes.length) === bytes.toSeq)
    assert(read("sparkdl_pressed") === bytes.toSeq)
    cached.unpersist(blocking = true)
    assert(blocks.retire(Job, "sparkdl_pressed", soon))
  }

  test("a block is not retired while it is read") {
    blocks.put(Job, "sparkdl_read", Array(direct(random(100))))
    val id = BroadcastBlockId(Job, "sparkdl_read")
    val reader = SparkEnv.get.blockManager.getLocalBytes(id).get
    assert(!blocks.retire(Job, "sparkdl_read", after(50)))
    SparkEnv.get.blockManager.releaseLockAndDispose(id, reader)
    assert(blocks.retire(Job, "sparkdl_read", soon))
    assert(blocks.retire(Job, "sparkdl_read", soon), "a missing block counts as retired")
  }

  test("after a failed attempt to retire a block, the next attempt can lock it") {
    val id = BroadcastBlockId(Job, "sparkdl_failing")
    val failing = new org.apache.spark.util.io.ChunkedByteBuffer(Array(direct(random(100)))) {
      override def dispose(): Unit = throw new IllegalStateException("not now")
    }
    SparkEnv.get.blockManager.putBytes(
      id,
      failing,
      StorageLevel.MEMORY_ONLY_SER,
      tellMaster = false
    )
    intercept[IllegalStateException](blocks.retire(Job, "sparkdl_failing", soon))
    assert(blocks.retire(Job, "sparkdl_failing", () => true))
  }

  test("an interrupted thread stops waiting for a reader") {
    blocks.put(Job, "sparkdl_held", Array(direct(random(100))))
    val id = BroadcastBlockId(Job, "sparkdl_held")
    val reader = SparkEnv.get.blockManager.getLocalBytes(id).get
    val retiring = new Thread(() => blocks.retire(Job, "sparkdl_held", after(60000)))
    retiring.start()
    retiring.interrupt()
    retiring.join(TimeUnit.SECONDS.toMillis(10))
    assert(!retiring.isAlive)
    SparkEnv.get.blockManager.releaseLockAndDispose(id, reader)
    assert(blocks.retire(Job, "sparkdl_held", soon))
  }

  test("local reads of blocks on disk leave no file open") {
    val bytes = random(100000)
    val id = BroadcastBlockId(Job, "sparkdl_disk")
    val block = new org.apache.spark.util.io.ChunkedByteBuffer(Array(direct(bytes)))
    SparkEnv.get.blockManager.putBytes(id, block, StorageLevel.DISK_ONLY, tellMaster = false)
    for (_ <- 1 to 20) assert(read("sparkdl_disk") === bytes.toSeq)
    val descriptors = Option(new java.io.File("/proc/self/fd").listFiles).toSeq.flatten
    val open = descriptors.flatMap(link => scala.util.Try(link.getCanonicalPath).toOption)
    assert(open.count(_.endsWith(id.name)) === 0)
    assert(blocks.retire(Job, "sparkdl_disk", soon))
  }

  test("without free memory a block goes to disk, and the user's cached data is not evicted") {
    val cached =
      context.parallelize(0 until 400, 400).map(_ => new Array[Byte](1 << 20)).persist(
        StorageLevel.MEMORY_ONLY
      )
    cached.count()
    def inMemory: Int = context.getRDDStorageInfo.map(_.numCachedPartitions).sum
    val before = inMemory
    assert(before > 0 && before < 400, "the test needs full storage memory")
    val bytes = random(5000000)
    blocks.put(Job, "sparkdl_modest", Array(direct(bytes)))
    assert(inMemory === before)
    assert(blocks.status(Job, "sparkdl_modest") === Some((0L, 5000000L)))
    assert(
      read("sparkdl_modest") === bytes.toSeq && serve("sparkdl_modest", bytes.length) === bytes.toSeq
    )
    assert(inMemory === before)
    cached.unpersist(blocking = true)
    assert(blocks.retire(Job, "sparkdl_modest", soon))
  }

  test("a block takes off-heap storage if it is configured") {
    // On the heap, Spark's own broadcasts come and go. Off the heap there is nothing else.
    def offHeap: Long = SparkEnv.get.memoryManager.offHeapStorageMemoryUsed
    def level(name: String): StorageLevel =
      SparkEnv.get.blockManager.getStatus(BroadcastBlockId(Job, name)).get.storageLevel
    assert(offHeap === 0)
    blocks.put(Job, "sparkdl_off_heap", Array(direct(random(OffHeapBytes))))
    assert(level("sparkdl_off_heap").useOffHeap && offHeap === OffHeapBytes)
    blocks.put(Job, "sparkdl_more", Array(direct(random(100))))
    assert(
      !level("sparkdl_more").useOffHeap && level("sparkdl_more").useMemory && offHeap === OffHeapBytes
    )
    assert(serve("sparkdl_off_heap", OffHeapBytes) === random(OffHeapBytes).toSeq)
    Seq("sparkdl_off_heap", "sparkdl_more").foreach(name => assert(blocks.retire(Job, name, soon)))
    assert(offHeap === 0)
  }

  test("a taken port is refused, and a free one is used") {
    object Deaf extends PeerMessageReceiver {
      override def onRequest(answer: ChunkAnswer): Unit = ()
      override def onMessage(message: ByteBuffer): Unit = ()
      override def onPeerLost(peer: ChunkPeer): Unit = ()
    }
    val taken = new ServerSocket(0, 1, InetAddress.getByName("127.0.0.1"))
    try intercept[BindException](executor.openNetwork(taken.getLocalPort, 1, Deaf))
    finally taken.close()
    val network = executor.openNetwork(taken.getLocalPort, 1, Deaf)
    try assert(network.address === ChunkPeer(
        "127.0.0.1",
        taken.getLocalPort,
        SparkContext.DRIVER_IDENTIFIER
      ))
    finally network.close()
  }

  test("reading a missing block fails") {
    intercept[IOException](read("sparkdl_never"))
    assert(source.open(Chunk(Job, "sparkdl_never", 0, 4)).isEmpty)
  }
}
