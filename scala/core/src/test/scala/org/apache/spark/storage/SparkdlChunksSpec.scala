// SPDX-License-Identifier: Apache-2.0

package org.apache.spark.storage

import java.net.{BindException, InetAddress, ServerSocket}
import java.nio.ByteBuffer
import java.util.concurrent.{CompletableFuture, LinkedBlockingQueue, TimeUnit}

import org.apache.spark.{SparkConf, SparkContext, SparkEnv, SparkdlExecutor}
import org.apache.spark.util.io.ChunkedByteBuffer
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.chunks.RecordingReceiver
import sparkdl.comm.transport.{Chunk, ChunkFailure, ChunkNetwork}

/** Tests of chunks of blocks in a real BlockManager, with Spark's authentication and encryption. */
class SparkdlChunksSpec extends AnyFunSuite with BeforeAndAfterAll {
  private val Job = 1L << 61
  private var context: SparkContext = _
  private lazy val executor = new SparkdlExecutor(context.getConf)
  private lazy val network: ChunkNetwork = executor.openNetwork(0, 1, new RecordingReceiver)

  override def beforeAll(): Unit = {
    val conf = new SparkConf(false)
      .setMaster("local[2]")
      .setAppName("chunks")
      .set("spark.ui.enabled", "false")
      .set("spark.driver.host", "127.0.0.1")
      .set("spark.driver.bindAddress", "127.0.0.1")
      .set("spark.authenticate", "true")
      .set("spark.authenticate.secret", "a secret of this test")
      .set("spark.network.crypto.enabled", "true")
      .set("spark.io.encryption.enabled", "true")
      .set("spark.io.encryption.commons.config.cipher.classes", classOf[CountingCipher].getName)
    context = new SparkContext(conf)
  }

  override def afterAll(): Unit = {
    network.close()
    context.stop()
  }

  private def random(count: Int): Array[Byte] = {
    val bytes = new Array[Byte](count)
    new scala.util.Random(count).nextBytes(bytes)
    bytes
  }

  private def direct(bytes: Array[Byte]): ByteBuffer =
    ByteBuffer.allocateDirect(bytes.length).put(bytes).flip()

  private def fetch(name: String, offset: Int, length: Int): Either[ChunkFailure, Seq[Byte]] =
    begin(network, name, offset, length).get(40, TimeUnit.SECONDS)

  /** Fetch a chunk from `from`, which is in this JVM too. */
  private def begin(
      from: ChunkNetwork,
      name: String,
      offset: Int,
      length: Int,
      job: Long = Job
  ): CompletableFuture[Either[ChunkFailure, Seq[Byte]]] = {
    val memory = ByteBuffer.allocate(length)
    val end = new CompletableFuture[Either[ChunkFailure, Seq[Byte]]]
    val deadline = System.nanoTime + TimeUnit.SECONDS.toNanos(30)
    val chunk = Chunk(job, name, offset.toLong, length)
    network.fetch(from.address, chunk, piece => memory.put(piece), deadline) { failure =>
      end.complete(failure.toLeft(memory.array.toSeq))
    }
    end
  }

  private def retireNow(name: String): Boolean = {
    // an answer is released a little after it arrives
    val end = System.nanoTime + TimeUnit.SECONDS.toNanos(10)
    executor.blocks.retire(Job, name, () => System.nanoTime >= end)
  }

  test("chunks of a block of several pieces come from the published memory") {
    val pieces = Seq(random(1), random(100000), random(30), random(50001))
    val whole = pieces.flatten
    executor.blocks.put(Job, "sparkdl_pieces", pieces.map(direct).toArray)
    val places =
      Seq(
        (0, 1),
        (0, whole.size),
        (1, 100000),
        (99990, 100),
        (100001, 30),
        (100000, 32),
        (whole.size - 1, 1)
      )
    for ((offset, length) <- places)
      withClue(s"$length at $offset: ") {
        assert(fetch("sparkdl_pieces", offset, length) === Right(whole.slice(
          offset,
          offset + length
        )))
      }
    assert(retireNow("sparkdl_pieces"))
    assert(fetch("sparkdl_pieces", 0, 1).left.exists(_.isInstanceOf[ChunkFailure.NotServed]))
  }

  test("a broadcast of Spark's own is not served") {
    val broadcast = SparkEnv.get.broadcastManager.newBroadcast("secret" * 1000, isLocal = true)
    val id = BroadcastBlockId(broadcast.id, "piece0")
    assert(SparkEnv.get.blockManager.getStatus(id).isDefined)
    val fetched = begin(network, "piece0", 0, 10, broadcast.id).get(40, TimeUnit.SECONDS)
    assert(fetched.left.exists(_.isInstanceOf[ChunkFailure.NotServed]))
    broadcast.destroy()
  }

  test("chunks come from an encrypted block on disk") {
    val bytes = random(300000)
    val id = BroadcastBlockId(Job, "sparkdl_disk")
    val block = new ChunkedByteBuffer(Array(direct(bytes)))
    SparkEnv.get.blockManager.putBytes(id, block, StorageLevel.DISK_ONLY, tellMaster = false)
    for ((offset, length) <- Seq((0, 300000), (299999, 1), (123456, 65536)))
      assert(
        fetch("sparkdl_disk", offset, length) === Right(bytes.slice(offset, offset + length).toSeq)
      )
    assert(retireNow("sparkdl_disk"))
  }

  test(
    "a block sent on the thread of a Spark task is unlocked once sent, and the task ends normally"
  ) {
    val asked = new LinkedBlockingQueue[Runnable]
    val bytes = random(1 << 20)
    val from = executor.openNetwork(0, 1, new RecordingReceiver(64 << 10, asked.put(_)))
    try {
      executor.blocks.put(Job, "sparkdl_task", Array(direct(bytes)))
      SparkdlChunksSpec.inTask = () => {
        val fetched = begin(from, "sparkdl_task", 0, bytes.length)
        asked.poll(30, TimeUnit.SECONDS).run()
        assert(fetched.get(40, TimeUnit.SECONDS) === Right(bytes.toSeq))
        assert(retireNow("sparkdl_task"))
      }
      context.parallelize(Seq(0), 1).foreach(_ => SparkdlChunksSpec.inTask())
    } finally from.close()
  }

  test("reading an encrypted block on disk in parts decrypts each byte once") {
    val bytes = random(4 << 20)
    val partBytes = 48 << 10
    val block = new ChunkedByteBuffer(Array(direct(bytes)))
    SparkEnv.get.blockManager.putBytes(
      BroadcastBlockId(Job, "sparkdl_parts"),
      block,
      StorageLevel.DISK_ONLY,
      tellMaster = false
    )
    val from = executor.openNetwork(0, 1, new RecordingReceiver(partBytes))
    try {
      val before = CountingCipher.decrypted.get
      assert(begin(from, "sparkdl_parts", 0, bytes.length).get(40, TimeUnit.SECONDS) === Right(
        bytes.toSeq
      ))
      assert(CountingCipher.decrypted.get - before === bytes.length)
      for ((offset, length) <- Seq((1, 1), (15, 2), (4097, 70000)))
        assert(fetch("sparkdl_parts", offset, length) === Right(
          bytes.slice(offset, offset + length).toSeq
        ))
      assert(retireNow("sparkdl_parts"))
    } finally from.close()
  }

  test("a chunk beyond the end of a block is refused, and the block is unlocked") {
    executor.blocks.put(Job, "sparkdl_short", Array(direct(random(100))))
    for ((offset, length) <- Seq((0, 101), (100, 1), (1000, 10))) {
      val Left(failure) = fetch("sparkdl_short", offset, length): @unchecked
      assert(
        failure.isInstanceOf[ChunkFailure.NotServed] && failure.getMessage.contains("has 100 bytes")
      )
    }
    assert(retireNow("sparkdl_short"))
  }

  test("a block that Spark is moving is sent afterwards, and delays no other block") {
    val bytes = random(1000)
    val names = Seq("sparkdl_moving", "sparkdl_other")
    names.foreach(executor.blocks.put(Job, _, Array(direct(bytes))))
    val id = BroadcastBlockId(Job, "sparkdl_moving")
    val locks = SparkEnv.get.blockManager.blockInfoManager
    locks.lockForWriting(id)
    val moving =
      try {
        val moving = begin(network, "sparkdl_moving", 0, bytes.length)
        assert(fetch("sparkdl_other", 0, bytes.length) === Right(bytes.toSeq))
        assert(!moving.isDone)
        moving
      } finally locks.unlock(id)
    assert(moving.get(40, TimeUnit.SECONDS) === Right(bytes.toSeq))
    names.foreach(name => assert(retireNow(name)))
  }

  test("a block that cannot be looked up is refused, and unlocked") {
    val id = BroadcastBlockId(Job, "sparkdl_values")
    // its bytes are not in the store
    SparkEnv.get.blockManager.putSingle(id, "a value", StorageLevel.MEMORY_ONLY, tellMaster = false)
    assert(fetch("sparkdl_values", 0, 1).left.exists(_.isInstanceOf[ChunkFailure.NotServed]))
    assert(retireNow("sparkdl_values"))
  }

  test("the network listens on Spark's address and a free port") {
    val taken = new ServerSocket(0, 1, InetAddress.getByName("127.0.0.1"))
    try intercept[BindException](executor.openNetwork(taken.getLocalPort, 1, new RecordingReceiver))
    finally taken.close()
    val other = executor.openNetwork(taken.getLocalPort, 1, new RecordingReceiver)
    try assert((other.address.host, other.address.port) === (("127.0.0.1", taken.getLocalPort)))
    finally other.close()
  }
}

private object SparkdlChunksSpec {

  /** Work of a task in this JVM. */
  @volatile var inTask: () => Unit = _
}
